"""NeMo-RL's refit into a real vLLM: after it the sampler's log-probs are the trainer's.

One process without Ray: NeMo-RL's worker extension in a vLLM engine, NeMo-RL's senders in a thread.
"""

from collections.abc import Iterator
from pathlib import Path

import models
import pytest
from engine_here import Engine
from trainer import SAME, Trainer, free_port, prompts

LONG = prompts(count=8, length=70)  # four blocks of 16, and some

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=[True, False], ids=["prefix_caching", "no_prefix_caching"])
def engine(request: pytest.FixtureRequest, model: Path) -> Iterator[Engine]:
    made = Engine(model, prefix_caching=request.param)
    yield made
    made.close()


@pytest.fixture
def trainer(model: Path, engine: Engine) -> Trainer:
    made = Trainer(model)
    engine.prepare(made)
    return made


def test_by_zmq(engine: Engine, trainer: Trainer, capfd: pytest.CaptureFixture[str]) -> None:
    trainer.move(seed=1)
    assert trainer.distance(engine.sample()) > 0.5
    assert engine.by_zmq(trainer.weights.items())
    assert "Packed 13 groups" in capfd.readouterr().out  # NeMo-RL's buffers, in turn
    engine.llm.reset_prefix_cache()
    assert trainer.distance(engine.sample()) < SAME


def test_by_the_packed_collective(engine: Engine, trainer: Trainer) -> None:
    engine.join(free_port())
    for seed in (2, 3):
        trainer.move(seed)
        assert trainer.distance(engine.sample()) > 0.5
        assert engine.by_collective(trainer.weights.items())
        engine.llm.reset_prefix_cache()
        assert trainer.distance(engine.sample()) < SAME


def test_prompts_come_from_the_cache(
    engine: Engine, trainer: Trainer, request: pytest.FixtureRequest
) -> None:
    assert engine.by_zmq(trainer.weights.items())
    engine.llm.reset_prefix_cache()
    cached = []
    for _ in range(2):
        assert trainer.distance(engine.sample(LONG)) < SAME
        cached.append(engine.cached)
    caching = engine.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
    assert cached == [0, 8 * 64 if caching else 0]


def test_a_weight_that_lacks_is_told(engine: Engine, trainer: Trainer, ref: str) -> None:
    """v0.7.0's receiver has no manifest: it reports an update that is none of that weight."""
    lacking = list(trainer.weights.items())[:-1]
    assert engine.by_zmq(lacking) == (ref == "v0.7.0")

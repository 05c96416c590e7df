"""The mismatch monitor on a real sampler: in bf16, one refit behind, with a stale cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from engine_here import Engine
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from trainer import Sampled, Trainer, prompts

from nemo_algos.nemo.estimator import Estimator
from nemo_algos.nemo.policy import PolicyProxy
from nemo_algos.objective.build import build
from nemo_algos.objective.loss import MismatchConfig

pytestmark = pytest.mark.smoke
LIMIT = 0.05  # docs/fp8.md: stop_above of a run without FP8
LONG = prompts(count=16, length=70)  # four blocks of the cache's 16 tokens, and some


class Trained:
    """A policy that counts the batches it is given."""

    batches = 0

    def train(self, batch: Any, loss_fn: Any) -> dict[str, Any]:
        self.batches += 1
        return {"all_mb_metrics": {}}


def watched(
    trainer: Trainer, responses: list[Sampled], stop_above: float | None = None
) -> dict[str, float]:
    """The metrics of a step of NeMo-RL's with these responses.

    Raises FloatingPointError as the monitor, before anything is trained.
    """
    rows = len(responses)
    width = max(len(s.prompt) + len(s.response) for s in responses)
    data = BatchedDataDict(
        token_mask=torch.zeros(rows, width),
        sample_mask=torch.ones(rows),
        prev_logprobs=torch.zeros(rows, width),
        generation_logprobs=torch.zeros(rows, width),
    )
    for row, s in enumerate(responses):
        response = slice(len(s.prompt), len(s.prompt) + len(s.response))
        data["token_mask"][row, response] = 1
        data["prev_logprobs"][row, response] = trainer.logprobs(s)
        data["generation_logprobs"][row, response] = s.logprobs
    estimator, policy = Estimator(build({"name": "grpo"})), Trained()
    data["advantages"] = estimator.compute_advantage(
        torch.arange(rows)[:, None] // 2,
        torch.arange(rows).float() % 2,
        data["token_mask"],
        logprobs_policy=data["prev_logprobs"],
    )
    proxy = PolicyProxy(policy, estimator, MismatchConfig(stop_above=stop_above))
    try:
        results = proxy.train(data, None)
    except FloatingPointError:
        assert policy.batches == 0
        raise
    named = results["all_mb_metrics"].items()
    return {k.removeprefix("mismatch/"): v[0] for k, v in named if k.startswith("mismatch/")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    made = Engine(model)
    made.prepare(Trainer(model))
    yield made
    made.close()


def refitted(engine: Engine, trainer: Trainer) -> None:
    assert engine.by_zmq(trainer.weights.items())
    engine.llm.reset_prefix_cache()


def test_a_bf16_sampler_is_as_far_as_bf16_explains(model: Path) -> None:
    """As far as the trainer's own model in bf16; beyond float32, and below what ends a run."""
    trainer = Trainer(model)
    halved = Engine(model, dtype="bfloat16")
    try:
        halved.prepare(trainer)
        refitted(halved, trainer)
        responses = halved.sample()
    finally:
        halved.close()
    found = watched(trainer, responses, stop_above=LIMIT)
    own = Trainer(model, dtype=torch.bfloat16)
    explained = watched(trainer, [s._replace(logprobs=own.logprobs(s)) for s in responses])
    assert explained["mean"] / 2 < found["mean"] < 2 * explained["mean"]
    assert found["p99"] < 2 * explained["p99"] and found["mean"] > 1e-4


def test_one_precision_is_no_mismatch(engine: Engine, model: Path) -> None:
    trainer = Trainer(model)
    refitted(engine, trainer)
    found = watched(trainer, engine.sample(), stop_above=1e-4)
    assert found["max"] < 1e-4 and found["mean"] < 1e-5
    assert found["share_above"] == found["nonfinite"] == 0


def test_an_engine_one_refit_behind_ends_the_first_step(engine: Engine, model: Path) -> None:
    """A step that moves every weight by about 2 %."""
    trainer = Trainer(model)
    refitted(engine, trainer)
    trainer.move(seed=1, size=0.02)
    behind = watched(trainer, engine.sample())
    assert behind["mean"] > 1000 * 1e-5
    with pytest.raises(FloatingPointError, match="Check that new weights reach the sampler"):
        watched(trainer, engine.sample(), stop_above=LIMIT)
    refitted(engine, trainer)
    assert watched(trainer, engine.sample(), stop_above=LIMIT)["max"] < 1e-4


def test_a_stale_prefix_cache_ends_the_first_step(engine: Engine, model: Path) -> None:
    """A refit, and keys and values of the prompts from before it."""
    trainer = Trainer(model)
    refitted(engine, trainer)
    engine.sample(LONG)
    trainer.move(seed=2, size=0.2)
    assert engine.by_zmq(trainer.weights.items())
    stale = engine.sample(LONG)
    assert engine.cached == 16 * 64
    with pytest.raises(FloatingPointError, match=r"mismatch\.stop_above=0\.05"):
        watched(trainer, stale, stop_above=LIMIT)
    engine.llm.reset_prefix_cache()
    assert watched(trainer, engine.sample(LONG), stop_above=LIMIT)["max"] < 1e-4
    assert engine.cached == 0

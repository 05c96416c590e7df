"""The mismatch of a real sampler, its level and its cause: bf16, one refit behind, stale cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from engine_here import Engine
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from trainer import Sampled, Trainer, prompts

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.dumps.dump import read
from nemo_algos.engines.dumps.watch import Watch
from nemo_algos.engines.nemo.estimator import Estimator, tensor_of
from nemo_algos.engines.nemo.policy import PolicyProxy
from nemo_algos.engines.nemo.probe import Probe, of_rank
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.verdict import with_model

pytestmark = pytest.mark.smoke
LIMIT = 0.05  # docs/mismatch.md: stop_above of a run without FP8
LONG = prompts(count=16, length=70)  # four blocks of the cache's 16 tokens, and some


class Trained:
    """A policy that counts the batches it is given."""

    batches = 0

    def train(self, batch: Any, loss_fn: Any) -> dict[str, Any]:
        self.batches += 1
        return {"all_mb_metrics": {}}


def watched(
    trainer: Trainer,
    responses: list[Sampled],
    stop_above: float | None = None,
    folder: Path | None = None,
) -> dict[str, float]:
    """The metrics of a step of NeMo-RL's with these responses; folder: of its dump.

    Raises FloatingPointError as the monitor, before anything is trained.
    """
    rows = len(responses)
    width = max(len(s.prompt) + len(s.response) for s in responses)
    data = BatchedDataDict(
        input_ids=torch.zeros(rows, width, dtype=torch.long),
        token_mask=torch.zeros(rows, width),
        sample_mask=torch.ones(rows),
        prev_logprobs=torch.zeros(rows, width),
        generation_logprobs=torch.zeros(rows, width),
    )
    for row, s in enumerate(responses):
        response = slice(len(s.prompt), len(s.prompt) + len(s.response))
        data["input_ids"][row, : response.stop] = torch.tensor(s.prompt + s.response)
        data["token_mask"][row, response] = 1
        data["prev_logprobs"][row, response] = trainer.logprobs(s)
        data["generation_logprobs"][row, response] = s.logprobs
    estimator, policy = Estimator(build({"name": "grpo"})), Trained()
    data["advantages"] = tensor_of(
        estimator.compute_advantage(
            torch.arange(rows)[:, None] // 2,
            torch.arange(rows).float() % 2,
            data["token_mask"],
            logprobs_policy=data["prev_logprobs"],
        )
    )
    settings = MismatchConfig(stop_above=stop_above, dump=1)
    proxy = PolicyProxy(policy, estimator, settings, folder=folder)
    try:
        results = proxy.train(data, None)
    except FloatingPointError:
        assert policy.batches == 0
        raise
    named = results["all_mb_metrics"].items()
    return {k.removeprefix("mismatch/"): v[0] for k, v in named if k.startswith("mismatch/")}


def cause(
    trainer: Trainer, responses: list[Sampled], folder: Path, before: Path | None = None
) -> str:
    """What `nemo-algos mismatch --model` says of that step's dump; before: earlier weights."""
    watched(trainer, responses, folder=folder)
    dumps = [read(folder / "mismatch" / "step_000001.npz")]
    found = examine(dumps, kept(trainer, folder / "now"), [before] if before else [])
    return with_model(dumps, found).verdict


def kept(trainer: Trainer, folder: Path) -> Path:
    """Its weights of now, as a Hugging Face folder."""
    trainer.model.save_pretrained(folder)
    return folder


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


def test_a_bf16_sampler_is_as_far_as_bf16_explains(model: Path, tmp_path: Path) -> None:
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
    assert cause(trainer, responses, tmp_path) == "clean"


def test_one_precision_is_no_mismatch(engine: Engine, model: Path, tmp_path: Path) -> None:
    trainer = Trainer(model)
    refitted(engine, trainer)
    responses = engine.sample()
    found = watched(trainer, responses, stop_above=1e-4)
    assert cause(trainer, responses, tmp_path) == "clean"
    assert found["max"] < 1e-4 and found["mean"] < 1e-5
    assert found["share_above"] == found["nonfinite"] == 0


def test_an_engine_one_refit_behind_ends_the_first_step(engine: Engine, model: Path) -> None:
    """A step that moves every weight by about 2 %."""
    trainer = Trainer(model)
    refitted(engine, trainer)
    trainer.move(seed=1, size=0.02)
    behind = watched(trainer, engine.sample())
    assert behind["mean"] > 1000 * 1e-5
    with pytest.raises(FloatingPointError, match="weights"):
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


@pytest.fixture
def taught(model: Path) -> Trainer:
    """On words near the one before: it is a taught model's update that moves single tokens."""
    trainer, generator = Trainer(model), torch.Generator().manual_seed(0)
    for step in range(150):
        steps = torch.randn(32, 32, generator=generator) * 3
        trainer.learn(8 + steps.round().long().cumsum(1) % 56, 3e-3 * (1 - step / 150))
    return trainer


def updated(trainer: Trainer, responses: list[Sampled], rate: float) -> None:
    """A step on the half of its responses that has more multiples of 3."""
    better = sorted(responses, key=lambda s: sum(i % 3 == 0 for i in s.response))
    kept = better[len(better) // 2 :]
    trainer.learn(torch.tensor([s.prompt + s.response for s in kept]), rate)


@pytest.mark.parametrize("rate", [3e-4, 1e-3, 3e-3])
def test_weights_one_refit_behind_are_named(
    rate: float, engine: Engine, taught: Trainer, tmp_path: Path
) -> None:
    refitted(engine, taught)
    responses, before = engine.sample(prompts(count=64)), kept(taught, tmp_path / "before")
    updated(taught, responses, rate)
    assert cause(taught, responses, tmp_path, before) == "old_weights"


def test_half_the_parameters_one_refit_behind_are_named(
    engine: Engine, model: Path, tmp_path: Path
) -> None:
    trainer = Trainer(model)
    old, before = dict(trainer.weights), kept(trainer, tmp_path / "before")
    old = {name: weight.clone() for name, weight in old.items() if ".mlp." in name}
    trainer.move(seed=3, size=0.1)
    assert engine.by_zmq((trainer.weights | old).items())
    engine.llm.reset_prefix_cache()
    assert cause(trainer, engine.sample(prompts(count=64)), tmp_path, before) == "partial_weights"


def test_a_token_that_the_engine_was_not_shown_is_named(
    engine: Engine, model: Path, tmp_path: Path
) -> None:
    trainer = Trainer(model)
    refitted(engine, trainer)
    responses = engine.sample(prompts(count=64))
    first = responses[0].prompt[:1]
    shown = [s._replace(prompt=[*first, *s.prompt]) for s in responses]
    assert cause(trainer, shown, tmp_path) == "template"


class Generation:
    """The engine behind the two methods of NeMo-RL's VllmGeneration that a probe takes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.asleep = engine, False

    def generate(self, data: Any, greedy: bool = False) -> Any:
        assert not self.asleep
        lengths = data["input_lengths"].tolist()
        asked = [ids[:n] for ids, n in zip(data["input_ids"].tolist(), lengths, strict=True)]
        found = self.engine.sample(asked, temperature=0.0 if greedy else 1.0)
        width = max(len(s.prompt) + len(s.response) for s in found)
        out = BatchedDataDict(
            output_ids=torch.zeros(len(found), width, dtype=torch.long),
            logprobs=torch.zeros(len(found), width),
            unpadded_sequence_lengths=torch.zeros(len(found), dtype=torch.long),
        )
        for row, s in enumerate(found):
            ids = torch.tensor(s.prompt + s.response)
            out["output_ids"][row, : len(ids)] = ids
            out["logprobs"][row, len(s.prompt) : len(ids)] = s.logprobs
            out["unpadded_sequence_lengths"][row] = len(ids)
        return out

    def finish_generation(self) -> None:
        self.asleep = True


class Policy:
    """The trainer behind what a probe asks of NeMo-RL's policy."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.cfg = {"logprob_batch_size": 3, "make_sequence_length_divisible_by": 8}
        self.sharding_annotations = self

    def get_axis_size(self, axis: str) -> int:
        return 2

    def prepare_for_lp_inference(self) -> None: ...
    def prepare_for_training(self) -> None: ...

    def get_logprobs(self, data: Any) -> dict[str, torch.Tensor]:
        rows, width = data["input_ids"].shape
        assert rows % 6 == width % 8 == 0
        logits = self.trainer.model(data["input_ids"]).logits.float().log_softmax(-1)
        found = logits[:, :-1].gather(2, data["input_ids"][:, 1:, None])[..., 0]
        return {"logprobs": torch.nn.functional.pad(found, (1, 0))}


@pytest.mark.parametrize(("arrives", "state"), [("all", ""), ("mlp", "part"), ("nothing", "none")])
def test_a_probe_sees_whether_a_refit_arrives(
    arrives: str, state: str, engine: Engine, model: Path, tmp_path: Path
) -> None:
    trainer, watch = Trainer(model), Watch(MismatchConfig(probe=1), tmp_path)
    refitted(engine, trainer)
    generation, policy = Generation(engine), Policy(trainer)
    rpc = lambda g: g.engine.llm.collective_rpc(of_rank)[0]  # noqa: E731
    probe = Probe(generation, lambda: True, rpc)
    asked = torch.tensor([p for p in prompts(count=10) for _ in range(2)])
    data = BatchedDataDict(input_ids=asked, input_lengths=torch.full((20,), 5))
    remarks = []
    for step in (1, 2):
        generation.asleep = False
        generation.generate(data)
        generation.finish_generation()
        columns = probe.columns(policy)
        assert columns and len(columns["tokens"]) == 16 and generation.asleep
        remarks.append(watch.probed(step, columns, probe.sums)[1])
        before = {name: weight.clone() for name, weight in trainer.weights.items()}
        trainer.move(seed=4, size=0.02)
        kinds = {"all": "", "mlp": ".mlp.", "nothing": "?"}[arrives]
        sent = {k: w if kinds in k else before[k] for k, w in trainer.weights.items()}
        assert engine.by_zmq(sent.items())
        engine.llm.reset_prefix_cache()
    assert watch.state == state and [bool(r) for r in remarks] == [False, bool(state)]
    assert not state or "qkv_proj" in remarks[1]  # vLLM's own names


@pytest.mark.parametrize("size", [0.02, 0.05, 0.2])
def test_a_cache_stale_for_some_prompts_is_named(
    size: float, engine: Engine, model: Path, tmp_path: Path
) -> None:
    trainer, asked = Trainer(model), prompts(count=64, length=70)
    refitted(engine, trainer)
    engine.sample(asked[:32], tokens=1)
    before = kept(trainer, tmp_path / "before")
    trainer.move(seed=2, size=size)
    assert engine.by_zmq(trainer.weights.items())
    responses = engine.sample(asked)
    assert engine.cached == 32 * 64
    assert cause(trainer, responses, tmp_path, before) == "stale_prefix"

"""LoRA through NeMo-RL's refit into a real vLLM: each adapted module by itself, merged or not.

The policy worker and the engine are children of this process, which runs neither.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import driver
import forked
import in_workers
import models
import pytest
import torch
from layouts import Layout
from trainer import SAME, TEMPERATURE, Sampled

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
DRIFTED = 0.01  # nats


class Adapted(driver.Driver):
    """The trainer's side."""

    def modules(self) -> list[str]:
        """The adapted ones."""
        adapters = self.in_workers(in_workers.adapters)
        return sorted({name.rpartition(".lora_")[0] for name in adapters})

    def info(self) -> dict[str, Any]:
        """What NeMo-RL tells the engine of the weights to come."""
        return self.policy.prepare_refit_info()

    def only(self, module: str) -> dict[str, torch.Tensor]:
        """What a refit sends when this module alone has been trained."""
        self.in_workers(in_workers.only_adapter(module))
        return self.sent()

    def apart_from(self, responses: list[Sampled]) -> float:
        """The largest |trainer - sampler| of a token, nats; all responses have one length."""
        ids = torch.tensor([s.prompt + s.response for s in responses])
        rows, width = ids.shape
        lengths, ones = torch.full((rows,), width), torch.ones(rows)
        data = {"input_ids": ids, "input_lengths": lengths, "sample_mask": ones}
        self.policy.prepare_for_lp_inference()
        made = type(self.data)({**data, "token_mask": torch.ones(rows, width)})
        got = self.policy.get_logprobs(made)["logprobs"]
        start = len(responses[0].prompt)
        return float((got[:, start:] - torch.stack([s.logprobs for s in responses])).abs().max())


class Sampler:
    """vLLM's side."""

    def __init__(self, model: Path, info: dict[str, Any]) -> None:
        import engine_here

        self.engine = engine_here.Engine(model)
        self.engine.llm.collective_rpc("prepare_refit_info", args=(info,))

    def sample(self, weights: dict[str, torch.Tensor]) -> list[Sampled]:
        assert self.engine.by_zmq(weights.items())
        self.engine.llm.reset_prefix_cache()
        return self.engine.sample(tokens=20)


def trainer_of(layout: Layout, folder: Path) -> forked.Forked:
    overrides = (*layout.overrides, f"policy.generation.temperature={TEMPERATURE}")

    def make() -> Adapted:
        from nemo_algos.engines.nemo import worker_env

        worker = worker_env.register_worker(f"{layout.backend}_worker")
        model = models.saved(layout.kind, folder / "models")
        cluster = forked.cluster(layout.ranks)
        return Adapted(layout.backend, model, cluster, worker, overrides)

    return forked.Forked(make)


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, imported: None, folder: Path
) -> Iterator[tuple[forked.Forked, forked.Forked]]:
    layout = Layout(request.param)
    trainer = trainer_of(layout, folder)
    info = trainer.call("info").get()
    sampler = forked.Forked(lambda: Sampler(folder / "models" / layout.kind, info))
    yield trainer, sampler
    sampler.end()
    trainer.end()


def drifting(trainer: forked.Forked, sampler: forked.Forked) -> dict[str, float]:
    """By adapted module, how far the sampler is from a trainer that has trained it alone."""
    found = {}
    for module in trainer.call("modules").get():
        weights = trainer.call("only", module).get()
        responses = sampler.call("sample", weights).get()
        found[module] = trainer.call("apart_from", responses).get()
    return found


@pytest.mark.parametrize("pair", ["dtensor-lora-proj-tied"], indirect=True)
def test_every_adapted_module_reaches_the_sampler(pair: Any) -> None:
    found = drifting(*pair)
    assert {name.rpartition(".")[2] for name in found} == PROJECTIONS
    assert max(found.values()) < SAME, found


@pytest.mark.parametrize("pair", ["dtensor-lora-proj-tied", "megatron-lora-tied"], indirect=True)
def test_after_updates_the_sampler_is_the_trainer(pair: Any) -> None:
    trainer, sampler = pair
    before = sampler.call("sample", trainer.call("sent").get()).get()
    trainer.call("updates", "grpo").get()
    assert trainer.call("apart_from", before).get() > DRIFTED
    after = sampler.call("sample", trainer.call("sent").get()).get()
    assert trainer.call("apart_from", after).get() < SAME


@pytest.mark.parametrize("pair", ["dtensor-lora-tied"], indirect=True)
def test_an_adapted_head_that_is_the_embedding_does_not(pair: Any) -> None:
    """NeMo-RL's default, match_all_linear, which `check` refuses: once this is red, it may not."""
    found = drifting(*pair)
    assert found.pop("lm_head") > DRIFTED
    assert max(found.values()) < SAME, found


@pytest.mark.parametrize("pair", ["dtensor-lora"], indirect=True)
def test_a_head_of_its_own_reaches_the_sampler(pair: Any) -> None:
    found = drifting(*pair)
    assert "lm_head" in found and max(found.values()) < SAME, found

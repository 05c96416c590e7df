"""Rewards that NeMo-RL scales and shapes: successes are told by what they were before.

In its own trainers, grpo_train and grpo_train_sync; and what their dynamic sampling keeps.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from in_queue import InProcessRollouts, plugged_in_queue, queue_cluster  # noqa: F401
from nemo_rl.algorithms import grpo, grpo_sync
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from plugged import Plugged
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo.estimator import OUTCOMES, Estimator
from nemo_algos.engines.nemo.patches import in_place
from nemo_algos.engines.nemo.policy import columns_registered

pytestmark = pytest.mark.usefixtures("in_process")
# 0 and 1 become -1 and 3, less what a response is too long by
SHAPED = [
    *("grpo.reward_scaling.enabled=true", "grpo.reward_scaling.target_min=-1"),
    *("grpo.reward_scaling.target_max=3", "grpo.reward_shaping.enabled=true"),
    *("grpo.reward_shaping.overlong_buffer_length=8", "grpo.reward_shaping.max_response_length=12"),
    "grpo.reward_shaping.overlong_buffer_penalty=1",
]


def etr(call: dict[str, Any], rate: Tensor, centred: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    elastic = 0.1 * (centred / (std + 1e-6)).tanh() + 0.1 * 4 * rate * (1 - rate)
    return call["signals"].low[:, 0], 0.2 + elastic


def apmpo(call: dict[str, Any], rate: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return call["signals"].extras["exponent"][:, 0], (-0.8 * rate.mean()).exp().expand_as(rate)


def topr(call: dict[str, Any], *_: Tensor) -> tuple[Tensor, Tensor]:
    return call["signals"].extras["won"][:, 0], call["repeated_batch"][OUTCOMES].double()


def maxrl(call: dict[str, Any], rate: Tensor, centred: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return call["signals"].advantages[:, 0], (centred / rate).where(rate > 0, 0.0)


METHODS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "etr": etr,
    "apmpo": apmpo,
    "topr": topr,
    "maxrl": maxrl,
}


def check(plugged: Plugged, name: str) -> None:
    """What the method makes of each batch, by direct formulas."""
    for call in plugged.estimator.calls:
        outcomes, shaped = (x.double() for x in (call["repeated_batch"][OUTCOMES], call["rewards"]))
        assert set(outcomes.tolist()) == {0.0, 1.0}
        assert torch.all(shaped <= 4 * outcomes - 1) and (shaped < 4 * outcomes - 1).any()
        same = (call["prompt_ids"][:, None] == call["prompt_ids"]).all(-1)
        rows = [row.nonzero()[:, 0] for row in same]
        rate = torch.stack([outcomes[r].mean() for r in rows])
        mean = torch.stack([shaped[r].mean() for r in rows])
        std = torch.stack([shaped[r].std() for r in rows])
        torch.testing.assert_close(*METHODS[name](call, rate, shaped - mean, std))


@pytest.mark.parametrize("name", METHODS)
def test_grpo_train(name: str, tmp_path: Path) -> None:
    check(Plugged(tmp_path, {"name": name}, SHAPED).train(), name)


@pytest.mark.usefixtures("queue_cluster")
def test_grpo_train_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    plugged = plugged_in_queue(tmp_path, {"name": "etr"}, "unpacked", monkeypatch, None, SHAPED)
    with columns_registered(plugged.estimator):
        plugged.train(trainer=grpo_sync.grpo_train_sync)
    check(plugged, "etr")


@pytest.mark.parametrize("module", [grpo, grpo_sync])
@pytest.mark.parametrize(
    ("name", "kept"), [("grpo", [True, False, False]), ("gdpo", [True, True, False])]
)
def test_a_group_is_flat_by_its_outcomes_or_by_each_part(
    module: Any, name: str, kept: list[bool], ref: str
) -> None:
    """Of three groups: one with sums that differ, one with parts that do, one without either."""
    prompts = torch.tensor([[1], [1], [2], [2], [3], [3]])
    first = torch.tensor([1.0, 0, 1, 0, 1, 1])
    second = torch.tensor([1.0, 1, 0, 1, 1, 1])
    names = ("reward1", "reward2") if ref == "v0.7.0" else ("reward/a", "reward/b")
    parts = dict(zip(names, (first, second), strict=True))
    batch: Any = BatchedDataDict({"total_reward": first + second, **parts})
    with in_place(Estimator(build(name))):
        scaling = {"enabled": False}
        batch = module.scale_rewards(batch, Section(scaling) if ref != "v0.7.0" else scaling)
        batch["unshaped_total_reward"] = batch["total_reward"].clone()
        shaped = batch["total_reward"] - torch.arange(6) / 10  # no two are equal
        _, std = module.calculate_baseline_and_std_per_prompt(prompts, shaped, torch.ones(6))
    assert (std != 0).tolist() == [k for k in kept for _ in range(2)]


class Section:
    """A section of main's config."""

    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)

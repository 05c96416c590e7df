"""GDPO against the code of TRL's normalize_then_sum, taken out of its trainer as it stands."""

import inspect
import textwrap
from types import SimpleNamespace

import pytest
import torch
from trl.trainer import grpo_trainer

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts

BRANCH = 'elif self.multi_objective_aggregation == "normalize_then_sum":'


def trls(parts, weights):
    """The lines of the branch, on rewards [B,K] of groups of 4."""
    source = inspect.getsource(grpo_trainer.GRPOTrainer._generate_and_score_completions)
    body = source.split(f"{BRANCH}\n", 1)[1].split("\n        else:\n", 1)[0]
    trainer = SimpleNamespace(reward_funcs=[None] * parts.shape[1], reward_weights=weights)
    names = {**vars(grpo_trainer), "self": trainer, "device": "cpu", "num_generations": 4}
    names |= {"rewards_per_func": parts, "unscorable_mask": torch.zeros(len(parts)).bool()}
    # TRL divides counts, which are integers, in the default dtype: in float32 it is off by 4e-8
    torch.set_default_dtype(torch.float64)
    try:
        exec(textwrap.dedent(body), names)
    finally:
        torch.set_default_dtype(torch.float32)
    return names["advantages"]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 2.0)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_gdpo_is_trls_normalize_then_sum(weights, seed):
    rng = torch.Generator().manual_seed(seed)
    parts = torch.rand(16, 2, generator=rng, dtype=torch.float64).round(decimals=1)
    parts[:4, 0] = 1.0  # a group without a spread
    named = dict(zip(("right", "brief"), weights, strict=True))
    rollouts = Rollouts(
        torch.arange(4).repeat_interleave(4),
        parts.sum(1),
        torch.ones(16, 1).bool(),
        torch.zeros(16, 1),
        reward_parts=dict(zip(named, parts.T, strict=True)),
        reward_weights=named,
    )
    got = build({"name": "gdpo", "epsilon": 1e-4}).signals(rollouts).advantages[:, 0]
    want = trls(parts, torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert got.abs().max() > 0.5

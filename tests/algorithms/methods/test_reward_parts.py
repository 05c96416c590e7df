"""Parts of the reward: GDPO's weights and masks, and pass rates of a named part."""

from dataclasses import replace

import pytest
import torch
from batches import close, make
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts


def of_groups(seed=0, weights=None):
    """3 groups of 4, in order, with two parts."""
    rng = torch.Generator().manual_seed(seed)
    parts = {k: torch.rand(12, generator=rng, dtype=torch.float64) for k in ("right", "brief")}
    mask = torch.ones(12, 3, dtype=torch.bool)
    rewards = parts["right"] + parts["brief"]
    group = torch.arange(3).repeat_interleave(4)
    more = {"reward_parts": parts, "reward_weights": weights}
    return Rollouts(group, rewards, mask, torch.zeros(12, 3), **more)


def direct(rollouts, weights, eps):
    """TRL's normalize_then_sum, written out."""
    parts = torch.stack([*rollouts.reward_parts.values()], 1).view(-1, 4, 2)
    normal = (parts - parts.mean(1, keepdim=True)) / (parts.std(1, keepdim=True) + eps)
    total = (normal.view(-1, 2) * torch.tensor(weights, dtype=torch.float64)).sum(1)
    return (total - total.mean()) / (total.std() + eps)


def test_gdpo_takes_nemo_rl_s_list_of_weights_in_alphabetical_order():
    rollouts = make().rollouts  # of brief and right
    by_name = build({"name": "gdpo", "reward_weights": {"brief": 0.25, "right": 2.0}})
    listed = build({"name": "gdpo", "reward_weights": [0.25, 2.0]})
    close(listed.signals(rollouts).advantages, by_name.signals(rollouts).advantages)
    with pytest.raises(ValueError, match=r"reward_weights.*\b3\b.*\b2\b.*brief, right"):
        build({"name": "gdpo", "reward_weights": [1, 2, 3]}).signals(rollouts)


def test_gdpo_leaves_masked_rows_out_of_the_batch_s_moments():
    kept = torch.arange(12) < 8
    rollouts = of_groups()
    got = build("gdpo").signals(replace(rollouts, sample_mask=kept)).advantages[:8]
    close(got, build("gdpo").signals(rollouts[kept]).advantages)


@pytest.mark.parametrize("name", ["etr", "apmpo"])
def test_a_success_reward_of_a_named_part(name):
    """As if that part were the reward, for the bounds and the exponent only."""
    rollouts = make().rollouts
    named = build({"name": name, "success_reward": "right"}).signals(rollouts)
    as_reward = build(name).signals(replace(rollouts, rewards=rollouts.column("right")))
    default = build(name).signals(rollouts)
    assert torch.equal(named.advantages, default.advantages)
    for key, value in named.extras.items():
        assert torch.equal(value, as_reward.extras[key])
    if name == "apmpo":
        assert torch.equal(named.high, as_reward.high)
    assert not torch.equal(named.high, default.high)


def test_a_part_outside_the_unit_interval_is_refused_and_the_sum_need_not_be_inside():
    rollouts = make().rollouts
    large = replace(rollouts, rewards=rollouts.rewards * 9)
    build({"name": "apmpo", "success_reward": "right"}).signals(large)
    outside = replace(rollouts, reward_parts={"right": rollouts.rewards * 9})
    with pytest.raises(ValueError, match=r"^apmpo .*\[0, 1\].*sequence \d"):
        build({"name": "apmpo", "success_reward": "right"}).signals(outside)


def test_what_is_not_there_is_named():
    rollouts = make().rollouts
    for block in (
        {"name": "etr", "success_reward": "rihgt"},
        {"name": "grpo", "bounds": {"name": "etr", "success_reward": "rihgt"}},
        {"name": "gdpo", "reward_weights": {"rihgt": 1.0}},
        {"name": "grpo", "terms": {"nll": {"success_reward": "rihgt"}}},
    ):
        with pytest.raises(ValueError) as error:
            build(block).signals(rollouts)
        assert str(error.value) == Says("'rihgt' brief right"), block
    alone = replace(rollouts, reward_parts=None)
    for name in ("gdpo", {"name": "etr", "success_reward": "right"}):
        with pytest.raises(ValueError, match=r"\breward_parts\b"):
            build(name).signals(alone)


def refusal(**fields):
    base = {"group": [0, 0], "rewards": [1, 0], "mask": [[True]] * 2, "old_logprobs": [[0.0]] * 2}
    with pytest.raises(ValueError) as error:
        Rollouts(**base, **fields)
    return str(error.value)


def test_parts_that_cannot_be():
    part = "reward_parts['a']"
    assert refusal(reward_parts={"a": [1]}) == Says(f"{part} [1] mask [2, 1] [2]")
    assert refusal(reward_parts={"a": [1, float("nan")]}) == Says(f"{part} sequence 1 nan")
    other = refusal(reward_parts={"a": [1, 0]}, reward_weights={"b": 1.0})
    assert other == Says("reward_weights reward_parts b")
    assert refusal(prompt=[1]) == Says("prompt [1] mask [2, 1] [2]")
    assert refusal(drift=[1.0]) == Says("drift [1] mask [2, 1] [2]")

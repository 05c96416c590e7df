"""What is foretold of rewards and masks is what NeMo-RL's own functions make of them."""

import random
from contextlib import suppress

import pytest
import torch
from nemo_rl.algorithms.grpo import (
    RewardScalingConfig,
    compute_and_apply_seq_logprob_error_masking,
    scale_rewards,
)
from nemo_rl.algorithms.reward_functions import RewardShapingConfig, apply_reward_shaping
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from nemo_algos.config import SHIPPED, apply_overrides, read
from nemo_algos.preflight.check import launcher
from nemo_algos.preflight.forecast import batch, rewards

DRAW = random.Random(0)


def scaling():
    low, high = DRAW.choice([(0, 1), (0, 0), (1, 0), (-1, 2), (DRAW.random(), DRAW.random())])
    target = DRAW.uniform(-2, 2), DRAW.uniform(-2, 2)
    bounds = dict(zip(rewards.UNSCALED, (low, high, *target), strict=True))
    return {"enabled": True, **bounds}


def shaping():
    section = {"enabled": True, "overlong_buffer_length": DRAW.randint(0, 200)}
    section["overlong_buffer_penalty"] = DRAW.choice([0.0, 0.5, 1.0, 3.0, -1.0])
    section["max_response_length"] = DRAW.randint(1, 600)
    section["stop_properly_penalty_coef"] = DRAW.choice([None, None, 0.0, 0.3, 1.0, 1.5])
    return section


def of_nemo_rl(outcome, scale, shape):
    made = BatchedDataDict(
        total_reward=torch.tensor([outcome.reward]),
        response_token_lengths=torch.tensor([outcome.tokens]),
        truncated=torch.tensor([outcome.cut]),
    )
    made = scale_rewards(made, RewardScalingConfig(**scale))
    return apply_reward_shaping(made, RewardShapingConfig(**shape))["total_reward"].item()


def foretold(outcome, scale, shape):
    reward = rewards.scaled(outcome.reward, scale)
    return rewards.shaped(outcome._replace(reward=reward), shape)


def test_rewards_are_nemo_rls():
    compared = stopped = 0
    for _ in range(300):
        scale, shape = scaling(), shaping()
        outcome = rewards.Outcome(
            DRAW.choice([0.0, 1.0, 0.3, -1.0]), DRAW.randint(1, 500), DRAW.random() < 0.4
        )
        want = found = None
        with suppress(AssertionError, ValueError, ZeroDivisionError):
            want = of_nemo_rl(outcome, scale, shape)
        with suppress(ValueError, ZeroDivisionError):
            found = foretold(outcome, scale, shape)
        assert (want is None) == (found is None), (scale, shape, outcome)
        if want is None:
            stopped += 1
            continue
        assert found == pytest.approx(want, abs=1e-5, rel=1e-5, nan_ok=True)
        compared += 1
    assert compared > 150 and stopped > 20


@pytest.mark.parametrize("gap", batch.GAPS)
def test_a_healthy_sequences_error_is_nemo_rls(gap):
    draws = torch.randn(1, 200_001, generator=torch.manual_seed(0)) * gap
    columns = {"prev_logprobs": torch.zeros_like(draws), "generation_logprobs": draws}
    columns |= {"token_mask": torch.ones_like(draws), "sample_mask": torch.ones(1)}
    found = compute_and_apply_seq_logprob_error_masking(
        BatchedDataDict(columns), torch.ones(1), seq_logprob_error_threshold=None
    )
    assert found["max_seq_mult_prob_error"] == pytest.approx(batch.probability_error(gap), rel=1e-3)


@pytest.mark.parametrize("pays", [1.0, 0.5])
def test_the_launch_says_where_nemo_rl_pays_another_reward(pays, monkeypatch):
    real = launcher.scale_rewards

    def scaled(made, section):
        made = real(made, section)
        made["total_reward"] = made["total_reward"] * pays
        return made

    monkeypatch.setattr(launcher, "scale_rewards", scaled)
    words = ["grpo.reward_scaling.enabled=true", "grpo.reward_scaling.target_min=-1"]
    words += ["cluster.gpus_per_node=1", "grpo.max_num_steps=100"]
    launch = launcher.compose(apply_overrides(read(SHIPPED / "nemo_rl.yaml"), words))
    differing = [line for line in launch.foretold if "NeMo-RL itself pays" in line]
    assert launch.foretold[0] == "This run" and "right 1, wrong -1" in launch.foretold[1]
    assert len(differing) == (0 if pays == 1 else 6)

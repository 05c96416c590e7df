"""What counts as a success, in every method, term and metric: rounding is none."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import KL, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import succeeded
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.local.observer import rollout_metrics
from nemo_algos.lab.evals.problem import Evaluation

ROUNDING = (0.1 + 0.2 - 0.3, 0.3 - (0.1 + 0.2))  # 5.6e-17 where the sum of parts is 0, and below it
WITH_TERM = {"name": "grpo", "terms": {"nll": {"coef": 0.3}}}


def test_a_success_is_above_the_rounding_of_its_batch():
    rewards = torch.tensor([ROUNDING[0], ROUNDING[1], 0.0, -1.0, 1e-5, 1.0], dtype=torch.float64)
    assert succeeded(rewards).tolist() == [False, False, False, False, True, True]
    assert succeeded(1e4 * rewards).tolist() == [False, False, False, False, True, True]
    assert succeeded(torch.tensor([0.0, 5e-3, 2e-2, 1e4])).tolist() == [False, False, True, True]
    assert succeeded(rewards[:0]).tolist() == []


@pytest.mark.parametrize("rounding", ROUNDING)
@pytest.mark.parametrize("method", [*({"name": name} for name in METHODS), WITH_TERM], ids=str)
def test_rounding_in_place_of_0_changes_nothing(method, rounding):
    """Of the reward, of its parts, and of what turns have earned."""
    batch = make()
    exact = batch.rollouts
    assert exact.reward_parts and exact.turn_rewards is not None
    noisy = replace(
        exact,
        rewards=exact.rewards.where(exact.rewards != 0, rounding),
        reward_parts={k: x.where(x != 0, rounding) for k, x in exact.reward_parts.items()},
    )
    want = run(method, batch)
    found = run(method, batch._replace(rollouts=noisy))
    close(found.value, want.value, 1e-9)
    close(found.grad, want.grad, 1e-9)


def turns_of_tenths(dtype: torch.dtype) -> Rollouts:
    """Three turns of two tokens; rewards by turn in tenths whose differences round."""
    earned = torch.tensor([[1, 2, 0], [3, 4, 0], [7, 1, 0], [1, 1, 0]], dtype=torch.float64) / 10
    mask = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1]).bool().expand(4, 8)
    earned = earned.to(dtype)
    old = torch.full((4, 8), -1.0, dtype=torch.float64)
    return Rollouts([0] * 4, earned.sum(1), mask, old, turn_rewards=earned)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_return_of_0_is_no_success_of_its_turn(dtype):
    """Nobody earns anything in the third turn, so its radius is the base."""
    signals = build({"name": "turn_etr", "micro": 0}).signals(turns_of_tenths(dtype))
    assert isinstance(signals.low, torch.Tensor)
    close(signals.low[:, 6:], 0.2)
    close(signals.low[:, :2], 0.2)  # all of them earn something from the first turn on


def test_metrics_count_successes():
    batch = make()
    rewards = batch.rollouts.rewards
    noisy = replace(batch.rollouts, rewards=rewards.where(rewards != 0, ROUNDING[0]))
    signals = build("grpo").signals(noisy)
    share = rollout_metrics(noisy, signals)["reward/positive_share"]
    assert share == int((rewards > 0).sum()) / len(rewards)


def test_full_reward_may_be_a_sum():
    given = SimpleNamespace(rewards=np.array([[0.7 + 0.2 + 0.1, 0.999, 1.0, 0.0]]))
    assert Evaluation.correct.fget(given).tolist() == [[True, False, True, False]]  # pyright: ignore


def test_best_rewards_that_round_apart_are_equal():
    """pass@k as objective: nobody leads."""
    rewards = torch.tensor([0.3, 0.1 + 0.2, 0.0], dtype=torch.float64)
    rollouts = Rollouts([0] * 3, rewards, torch.ones(3, 2).bool(), torch.full((3, 2), -1.0))
    assert build("pass_at_k").signals(rollouts).advantages.tolist() == [[0.0]] * 3


READERS = {
    "etr": {"name": "etr"},
    "turn_etr": {"name": "turn_etr"},
    "topr": {"name": "topr"},
    "nll": WITH_TERM,
    "grpo+etr": {"name": "grpo", "bounds": "etr"},
}


def of_two_rewards(brief: list[float]) -> Rollouts:
    """Two groups of 4: right or wrong, and brief or not."""
    right = torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 0])
    parts = {"right": right, "brief": torch.tensor(brief * 2)}
    mask = torch.ones(8, 3).bool()
    rewards = right + 0.1 * parts["brief"]
    return Rollouts(
        torch.arange(8) // 4, rewards, mask, torch.full((8, 3), -1.0), reward_parts=parts
    )


@pytest.mark.parametrize("method", READERS.values(), ids=READERS)
def test_a_part_that_every_response_earns_is_told(method):
    algorithm = build(method)
    said = algorithm.success_remark(of_two_rewards([0.5, 0.9, 0.2, 0.7]))
    key = {"nll": "method.terms.nll.success_reward", "grpo+etr": "method.bounds.success_reward"}
    name = next(label for label, block in READERS.items() if block is method)
    wanted = "reward of 0 or less" if name == "topr" else key.get(name, "method.success_reward")
    assert wanted in said
    assert algorithm.success_remark(of_two_rewards([0.5, 0.0, 0.2, 0.7])) == ""
    flat = replace(of_two_rewards([1.0] * 4), rewards=torch.full((8,), 0.7))
    assert algorithm.success_remark(flat) == ""


def test_nothing_is_told_where_the_part_is_named_or_nobody_reads_it():
    rollouts = of_two_rewards([0.5, 0.9, 0.2, 0.7])
    for method in (
        {"name": "etr", "success_reward": "right"},
        {"name": "grpo"},
        {"name": "quatro"},
    ):
        assert build(method).success_remark(rollouts) == ""


# ---- the last turn of a response

TURNS = ["turn_rloo", "turn_etr", "turn_quatro"]
EARNED = torch.eye(3, dtype=torch.float64)  # each response earns in another turn


def three_turns(**changed) -> Rollouts:
    mask = torch.tensor([[1, 0, 1, 0, 1, 1]] * 3).bool()
    old = torch.full((3, 6), -1.0, dtype=torch.float64)
    values = {"gen_logprobs": old.clone(), **changed}
    return Rollouts([0] * 3, EARNED.sum(1), mask, old, turn_rewards=EARNED, **values)


def of_others(signals: Signals, row: int) -> torch.Tensor:
    rows = torch.tensor([i for i in range(3) if i != row])
    return signals.advantages[rows]


@pytest.mark.parametrize("name", TURNS)
def test_a_row_that_is_masked_out_keeps_its_last_turn(name):
    algorithm = build(name)
    want = algorithm.signals(three_turns())
    masked = algorithm.signals(three_turns(sample_mask=torch.tensor([True, False, True])))
    close(of_others(masked, 1), of_others(want, 1))


@pytest.mark.parametrize("name", TURNS)
def test_a_rejected_turn_is_still_the_last(name):
    """The sampler disagrees on response 1's last turn: its tokens leave the mask."""
    gen = torch.full((3, 6), -1.0, dtype=torch.float64)
    gen[1, 4:] = -9.0
    rule = {"rollout_rs": "token_k2", "rollout_rs_threshold": 2.0}
    algorithm = build(name, rule)
    rollouts, _ = algorithm.correct(three_turns(gen_logprobs=gen))
    assert not rollouts.mask[1, 4:].any()
    close(
        of_others(algorithm.signals(rollouts), 1), of_others(build(name).signals(three_turns()), 1)
    )


def test_the_returns_of_a_rejected_turn_by_hand():
    """RLOO of response 0: 1 - 1, 0 - (1 + 1) / 2, 0 - (0 + 1) / 2."""
    gen = torch.full((3, 6), -1.0, dtype=torch.float64)
    gen[1, 4:] = -9.0
    algorithm = build("turn_rloo", {"rollout_rs": "token_k2", "rollout_rs_threshold": 2.0})
    signals = algorithm.signals(algorithm.correct(three_turns(gen_logprobs=gen))[0])
    assert signals.advantages[0, [0, 2, 5]].tolist() == [0.0, -1.0, -0.5]
    assert signals.advantages[2, [0, 2, 5]].tolist() == [0.0, 0.5, 1.0]


def test_the_samplers_weights_of_a_turn_are_its_geometric_mean():
    """J_i = sum_k w_k s_k (A_k - log s_k), w_k = exp(mean_t of log pi_old - log pi_gen)."""
    rollouts = three_turns()
    gap = torch.tensor([[0.3, 0, -0.2, 0, 0.5, -0.1]] * 3, dtype=torch.float64)
    rollouts = replace(rollouts, gen_logprobs=rollouts.old_logprobs - gap)
    config = KL.model_copy(
        update={"reference_policy_kl_penalty": 0.0, "use_importance_sampling_correction": True}
    )
    log_ratio = torch.linspace(-0.1, 0.2, 18, dtype=torch.float64).view(3, 6)
    batch = make()._replace(rollouts=rollouts, logprobs=rollouts.old_logprobs + log_ratio)
    algorithm = build("turn_quatro")
    A = algorithm.signals(rollouts).advantages
    total = 0.0
    for i in range(3):
        for tokens in ([0], [2], [4, 5]):
            s = log_ratio[i, tokens].sum()
            weight = gap[i, tokens].mean().exp()
            total += float(weight * s.exp() * (A[i, tokens[0]] - s))
    found = run("turn_quatro", batch, config)
    assert float(found.value) == pytest.approx(-total / 3, rel=1e-12)

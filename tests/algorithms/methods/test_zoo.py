"""The zoo by hand, one small number each; all of it against other code: tests/real/peers."""

from dataclasses import replace

import pytest
import torch
from batches import Batch, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.rollouts import Rollouts

MASK = torch.arange(4) < torch.tensor([[1], [2], [3], [4], [2], [2]])
# a success of one token among failures of two to four, and a flat group
ROLLOUTS = Rollouts(
    group=torch.tensor([0, 0, 0, 0, 1, 1]),
    rewards=torch.tensor([1.0, 0, 0, 0, 1, 1]),
    mask=MASK,
    old_logprobs=-torch.ones(6, 4, dtype=torch.float64),
)
MEAN, STD = 5 / 14, (5 / 14 * 9 / 14 * 14 / 13) ** 0.5  # of the 14 tokens 5 have a reward of 1


@pytest.mark.parametrize(
    ("method", "advantages"),
    [
        ({"name": "dr_grpo", "max_tokens": 2}, [0.375, -0.25, -0.375, -0.5, 0, 0]),
        ("rloo", [1, -1 / 3, -1 / 3, -1 / 3, 0, 0]),
        ("opo", [0.9, -0.1, -0.1, -0.1, 0, 0]),
        ("maxrl", [3, -1, -1, -1, 0, 0]),
        ("pass_at_k", [1, 0, 0, 0, 0, 0]),
        ("lite_ppo", [0.75 / 0.3**0.5, *[-0.25 / 0.3**0.5] * 3, 0, 0]),
        ("reinforce_pp", [(r - MEAN) / STD for r in (1, 0, 0, 0, 1, 1)]),
        ("luspo", [1.5, -1, -1.5, -2, 0, 0]),
    ],
    ids=str,
)
def test_advantages(method, advantages):
    got = build(method).signals(ROLLOUTS).advantages[:, 0]
    close(got, torch.tensor(advantages, dtype=torch.float64), 1e-5)  # 1e-6 beside a deviation


def tokens(*log_ratios, rewards=(1.0, 0.0), old=-1.0):
    """Two responses, a right and a wrong one, of these log-ratios."""
    log_ratio = torch.tensor(log_ratios, dtype=torch.float64)
    mask = torch.ones(log_ratio.shape, dtype=torch.bool)
    before = torch.full_like(log_ratio, old)
    rollouts = Rollouts(torch.tensor([0, 0]), torch.tensor(rewards), mask, before)
    return Batch(rollouts, before + log_ratio)


@pytest.mark.parametrize("name", ["dppo_tv", "prime_rl"])
def test_a_token_beyond_its_divergence_counts_as_clipped(name):
    """p = e^-1: .2 is a ratio of 1.54 or .46, and only the advantage's side is masked."""
    batch = tokens([0.5, 0.3, -1.0, 0.0], [0.5, -0.5, -1.0, 0.0])
    result = run(
        {"name": name, **({"kl_tau": 0} if name == "prime_rl" else {})}, batch, LossConfig()
    )
    assert result.stats.summary()["clip/fraction"] == 2 / 8
    assert (result.grad == 0).tolist() == [[True, False, False, False], [False, False, True, False]]


def test_ipo_keeps_by_the_distance_alone():
    """p = e^-1, eps .3: kept from .068 to .668; the gradient is A r / 8 there, whatever A is."""
    jumps = [0.0, 0.55, 0.7, -1.5], [0.0, 0.55, 0.7, -2.0]
    batch = tokens(*jumps)
    ratio = torch.tensor(jumps, dtype=torch.float64).exp()
    keep = torch.tensor([[True, True, False, True], [True, True, False, False]])
    A = torch.tensor([[0.5], [-0.5]], dtype=torch.float64)
    result = run("ipo", batch, LossConfig())
    close(result.grad, -(keep * A * ratio) / 8)
    close(result.value, -(keep * A * ratio).sum() / 8)
    pulled = run({"name": "ipo", "kl_tau": 0.1}, batch, LossConfig())
    close(pulled.grad - result.grad, 0.2 * ratio.log() / 8)


def test_a_certain_token_stays_within_the_binary_kl():
    """Its probability is 1 before and, by rounding, above 1 after."""
    batch = tokens([1e-7, 0.0], [1e-7, 0.0], old=0.0)
    assert (run("dppo_kl", batch, LossConfig()).grad != 0).all()


def test_fipos_future_is_the_sum_over_any_number_of_windows_and_holes():
    """300 tokens and holes, against the double sum."""
    rng = torch.Generator().manual_seed(0)
    log_ratio = 0.05 * torch.randn(2, 300, generator=rng, dtype=torch.float64)
    mask = torch.rand(2, 300, generator=rng) < 0.8
    algorithm = build({"name": "fipo", "low": 0.0, "high": 9.0, "safety": 100.0})
    rollouts = replace(tokens(*[[0.0] * 300] * 2).rollouts, mask=mask)
    signals, l = algorithm.signals(rollouts), log_ratio.where(mask, 0.0)  # noqa: E741
    got = algorithm.transform(l, mask, signals).advantages / signals.advantages
    for i in range(2):
        places = mask[i].nonzero()[:, 0]
        n = torch.arange(len(places))
        decay = 0.5 ** ((n[None] - n[:, None]) / 32).double()
        want = (decay.triu() @ l[i, places]).exp()
        close(got[i, places], want)


def test_gepos_denominator_is_the_groups():
    """q = e^-1 and e^-2 (one token each): E = (q1^2 + q2^2) / (q1 + q2)."""
    old = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64)
    rollouts = replace(tokens([0.0], [0.0]).rollouts, old_logprobs=old)
    algorithm = build("gepo")
    shaped = algorithm.transform(torch.zeros_like(old), rollouts.mask, algorithm.signals(rollouts))
    q = old.exp()
    close(shaped.log_ratio.exp(), q / (q.square().sum() / q.sum()))


def test_a_distilled_token_is_pulled_to_the_teacher_whatever_the_rewards():
    batch = tokens([0.0, 0.0], [0.0, 0.0], rewards=(1.0, 1.0))
    teacher = torch.tensor([[-0.5, -1.5], [-1.0, -1.0]], dtype=torch.float64)
    batch = Batch(replace(batch.rollouts, ref_logprobs=teacher), batch.logprobs)
    result = run("opd", batch, LossConfig())
    close(result.grad, torch.tensor([[-0.125, 0.125], [0, 0]], dtype=torch.float64))
    assert build("opd").signals(batch.rollouts).metrics == {"opd/teacher_kl": 0.0}


def test_advantages_and_bounds_of_the_zoo_combine():
    """Bounds of a divergence in GRPO: the token mean apart, dppo_tv's gradient without its cap."""
    batch = make(large=False)
    grpo = {"name": "grpo", "aggregation": "token", "bounds": "dppo_tv"}
    close(run(grpo, batch, LossConfig()).grad, run("dppo_tv", batch, LossConfig()).grad)
    same = {"name": "grpo", "aggregation": "token", "advantages": "rloo"}
    close(run(same, batch, LossConfig()).grad, run("rloo", batch, LossConfig()).grad)


def test_a_token_at_the_quantile_of_the_entropies_is_kept():
    """Of six entropies the 0.8 quantile is the second largest, which is not above itself."""
    entropy = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.3, 0.2]], dtype=torch.float64)
    batch = tokens([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    rollouts = replace(batch.rollouts, entropy=entropy)
    got = build("high_entropy").signals(rollouts).advantages
    assert (got != 0).tolist() == [[False, True, False], [True, False, False]]

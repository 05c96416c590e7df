"""What the zoo's numbers in tests/golden do not reach: metrics, windows, rounding, combinations."""

from dataclasses import replace

import pytest
import torch
from batches import Batch, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.rollouts import Rollouts


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

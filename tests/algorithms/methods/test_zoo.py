"""What the numbers in tests/golden do not reach: windows, rounding, a quantile, shares."""

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


def test_a_token_at_the_quantile_of_the_entropies_is_kept():
    """Of six entropies the 0.8 quantile is the second largest, which is not above itself."""
    entropy = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.3, 0.2]], dtype=torch.float64)
    batch = tokens([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    rollouts = replace(batch.rollouts, entropy=entropy)
    got = build("high_entropy").signals(rollouts).advantages
    assert (got != 0).tolist() == [[False, True, False], [True, False, False]]


def test_without_its_penalty_quatro_is_silent_in_a_flat_group():
    batch = make(rewards=((1.0,) * 5,), large=False)
    assert (run({"name": "quatro", "log_ratio_penalty": False}, batch).value != 0).all()  # the KL
    off = run({"name": "quatro", "log_ratio_penalty": False}, batch, LossConfig())
    assert off.value == 0 and (off.grad == 0).all()


def test_quatro_counts_capped_prompts():
    capped = (1.0,) * 15 + (0.0,)
    batch = make(rewards=(capped, (0.0, 1.0), (1.0, 1.0)))
    metrics = build({"name": "quatro", "delta": 0.1}).signals(batch.rollouts).metrics
    assert metrics["quatro/capped_share"] == pytest.approx(1 / 3)

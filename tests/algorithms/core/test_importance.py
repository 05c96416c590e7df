"""Weights and rejections of another policy's samples, by hand."""

import math

import pytest
import torch

from nemo_algos.algorithms.core.importance import (
    divergence,
    gap,
    importance,
    kept_tokens,
    length_ratio,
    mean_weight,
)

NAN, LOG_2, LOG_3 = math.nan, math.log(2.0), math.log(3.0)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


OLD = tensor([[-LOG_2, 0.0, LOG_2, NAN], [LOG_3, LOG_3, NAN, NAN], [NAN] * 4])
RATIO = gap(OLD, torch.zeros(3, 4).double(), MASK)  # of the tokens 1/2, 1, 2 and 3, 3


def close(got, want):
    torch.testing.assert_close(got, tensor(want), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("cut", "low", "high", "want"),
    [
        (None, 0.0, math.inf, [[0.5, 1, 2, 1], [3, 3, 1, 1]]),
        ("tis", 0.0, 1.5, [[0.5, 1, 1.5, 1], [1.5, 1.5, 1, 1]]),
        ("tis", 0.7, 1.5, [[0.7, 1, 1.5, 1], [1.5, 1.5, 1, 1]]),
        ("icepop", 0.5, 1.5, [[0.5, 1, 0, 1], [0, 0, 1, 1]]),
        ("icepop", 0.6, 2.0, [[0, 1, 2, 1], [0, 0, 1, 1]]),
        ("seq-mask-tis", 0.9, 1.1, [[0.5, 1, 2, 1], [0, 0, 0, 0]]),  # geometric means 1 and 3
        ("seq-mask-tis", 1.1, 4.0, [[0, 0, 0, 0], [3, 3, 1, 1]]),
    ],
)
def test_token_weights(cut, low, high, want):
    close(importance(RATIO, MASK, "token", cut, low, high)[:2], want)


@pytest.mark.parametrize(
    ("cut", "low", "high", "want"),
    [
        (None, 0.0, math.inf, [1, 9]),
        ("tis", 0.0, 2.0, [1, 2]),
        ("tis", 1.5, 20.0, [1.5, 9]),
        ("icepop", 0.5, 2.0, [1, 0]),
        ("icepop", 2.0, 10.0, [0, 9]),
        ("seq-mask-tis", 0.5, 3.5, [1, 9]),  # judged by the mean 3, weighted by the product 9
        ("seq-mask-tis", 0.5, 2.0, [1, 0]),
    ],
)
def test_sequence_weights(cut, low, high, want):
    close(importance(RATIO, MASK, "sequence", cut, low, high)[:2, 0], want)


def test_weights_are_finite_and_carry_no_gradient():
    on = torch.ones(1, 4, dtype=torch.bool)
    old = tensor([[1e4, -1e4, 0.0, 0.0]]).requires_grad_()
    log_ratio = gap(old, torch.zeros(1, 4), on)
    assert not log_ratio.requires_grad
    assert importance(log_ratio, on, "sequence").item() == 1
    close(importance(log_ratio, on, "token"), [[math.exp(20), math.exp(-20), 1, 1]])
    huge = importance(log_ratio + 1e3, on, "sequence")
    close(huge, [[math.exp(20)]])


# of the ratios 1/2, 1, 2 and 3, 3: k1 = -l, k2 = l^2 / 2, k3 = r - 1 - l
K2, K3 = [LOG_2**2 / 2, LOG_3**2 / 2], [2 - 1 - LOG_2, 3 - 1 - LOG_3]
K3_HALF = 0.5 - 1 + LOG_2


@pytest.mark.parametrize(
    ("option", "want"),
    [
        ("token_k1", [[LOG_2, 0, -LOG_2, 0], [-LOG_3, -LOG_3, 0, 0], [0, 0, 0, 0]]),
        ("token_k2", [[K2[0], 0, K2[0], 0], [K2[1], K2[1], 0, 0], [0, 0, 0, 0]]),
        ("token_k3", [[K3_HALF, 0, K3[0], 0], [K3[1], K3[1], 0, 0], [0, 0, 0, 0]]),
        ("seq_sum_k1", [[0], [-2 * LOG_3], [0]]),
        ("seq_sum_k2", [[2 * K2[0]], [2 * K2[1]], [0]]),
        ("seq_sum_k3", [[K3_HALF + K3[0]], [2 * K3[1]], [0]]),
        ("seq_mean_k1", [[0], [-LOG_3], [0]]),
        ("seq_mean_k2", [[2 * K2[0] / 3], [K2[1]], [0]]),
        ("seq_mean_k3", [[(K3_HALF + K3[0]) / 3], [K3[1]], [0]]),
        ("seq_max_k2", [[K2[0]], [K2[1]], [0]]),
        ("seq_max_k3", [[K3[0]], [K3[1]], [0]]),
    ],
)
def test_divergences(option, want):
    torch.testing.assert_close(divergence(RATIO, MASK, option), tensor(want))


def test_every_option_must_be_passed_and_bounds_are_inside():
    assert torch.equal(kept_tokens(RATIO, MASK, {}), MASK)
    own = (-LOG_2, LOG_2)
    got = kept_tokens(RATIO, MASK, {"token_k1": own, "seq_max_k3": (-math.inf, 0.4)})
    assert got.int().tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    got = kept_tokens(RATIO, MASK, {"token_k1": (-LOG_2, LOG_2 - 1e-9)})
    assert got.int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert length_ratio(got, MASK).tolist() == [[1.5], [2.0], [0.0]]


def test_means_are_of_tokens_or_of_sequences():
    assert mean_weight(tensor([[1, 2, 3, 9], [4, 5, 9, 9], [9] * 4]), MASK).item() == 3
    assert mean_weight(tensor([[1], [4], [9]]), MASK).item() == 2.5

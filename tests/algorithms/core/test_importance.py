"""Divergences and rejections of another policy's samples, by hand."""

import math

import pytest
import torch

from nemo_algos.algorithms.core.importance import (
    divergence,
    gap,
    importance,
    kept_tokens,
    length_ratio,
)

NAN, LOG_2, LOG_3 = math.nan, math.log(2.0), math.log(3.0)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


OLD = tensor([[-LOG_2, 0.0, LOG_2, NAN], [LOG_3, LOG_3, NAN, NAN], [NAN] * 4])
RATIO = gap(OLD, torch.zeros(3, 4).double(), MASK)  # of the tokens 1/2, 1, 2 and 3, 3


def close(got, want):
    torch.testing.assert_close(got, tensor(want), rtol=1e-12, atol=0)


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

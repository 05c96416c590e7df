"""log M_p against the definition in exact rational or decimal arithmetic, and its limits."""

from decimal import Decimal, getcontext

import pytest
import torch
from batches import close

from nemo_algos.algorithms.core.power_mean import log_power_mean


def log_mean(values, p):
    """log( (mean u^p)^(1/p) ) in 60 digits."""
    getcontext().prec = 60
    power = Decimal(p)
    terms = [(power * Decimal(v)).exp() for v in values]
    return float((sum(terms) / len(terms)).ln() / power)


def ours(values, p, dtype=torch.float64):
    row = torch.tensor([[*values, 0.0]], dtype=dtype)  # a masked position holds 0
    mask = torch.tensor([[True] * len(values) + [False]])
    return log_power_mean(row, mask, torch.tensor([[p]], dtype=dtype))


ROWS = ([0.1, -0.2, 0.05], [0.3], [20.0, -20.0, 1.0], [1e-9, -1e-9, 3e-9], [5.0] * 4)


@pytest.mark.parametrize("p", [1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.449, 1.0, 2.0])
@pytest.mark.parametrize("values", ROWS, ids=str)
def test_agrees_with_60_digits(values, p):
    close(ours(values, p), log_mean(values, p), 1e-13)
    close(ours(values, p, torch.float32).double(), log_mean(values, p), 5e-6)


@pytest.mark.parametrize("values", ROWS, ids=str)
@pytest.mark.parametrize("p", [0.0, 1e-320, 1e-300])
def test_at_0_it_is_the_geometric_mean(values, p):
    close(ours(values, p), sum(values) / len(values), 1e-14)


def test_empty_row_is_0():
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    got = log_power_mean(torch.zeros(1, 4), nothing, torch.tensor([[0.5]]))
    assert got.tolist() == [[0.0]]

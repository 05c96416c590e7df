"""Emulated FP8 against Transformer Engine's own numbers (tests/golden/te_numbers.py)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_algos.engines.local.low_precision import RECIPES, e4m3

NUMBERS = np.load(Path(__file__).parents[2] / "golden" / "te_numbers.npz")
BLOCKWISE = RECIPES["fp8_blockwise"]
OURS = {
    "rows/float32": lambda x: e4m3(128, x, False),
    "squares/float32": lambda x: e4m3(128, x, True),
    "rows/power_of_two": BLOCKWISE.activation,
    "squares/power_of_two": BLOCKWISE.weight,
}


@pytest.mark.parametrize("name", ["plain", "awkward"])
@pytest.mark.parametrize("kind", OURS)
def test_every_number_is_transformer_engine_s(kind, name):
    got = OURS[kind](torch.from_numpy(NUMBERS[name]))
    assert torch.equal(got, torch.from_numpy(NUMBERS[f"{name}/{kind}"]))

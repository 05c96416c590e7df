"""The pictures of a verdict: each axis has numbers, also where it spans less than a decade."""

import re

import numpy as np
import pytest
from matrix import some_of

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch import page
from nemo_algos.lab.mismatch.responses import everything


@pytest.mark.parametrize("draw", page.FIGURES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("apart", some_of([1e-3, 0.02, 0.5], 1))
def test_every_axis_has_numbers(draw, apart):
    rng, shape = np.random.default_rng(0), (30, 20)
    values = -1.5 - rng.random(shape)
    sides = {"sampler_logprobs": values, "trainer_logprobs": values + apart * rng.random(shape)}
    ages = {"weights_version": np.arange(30) % 4, "step": 5}
    tokens = everything([from_arrays({"tokens": rng.integers(0, 50, shape), **sides, **ages})])
    drawn = str(page._svg(draw, tokens))
    for anchor in ("middle", "end"):  # below the x axis, beside the y axis
        numbers = re.findall(rf"text-anchor: {anchor}[^>]*>[-\u2212]?[\d.e-]+</text>", drawn)
        assert len(numbers) >= 2, anchor

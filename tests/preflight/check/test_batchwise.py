"""Which methods take statistics of a whole rollout batch: dynamic sampling would change them."""

import torch
from batches import make

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS

# of these few tokens with their defaults: one, and all
FELT = {"clip_cov": {"share": 0.2}, "m2po": {"threshold": 0.004}}
GROUPS = ((0.0, 1.0) * 3, (0.0, 0.0, 1.0), (0.0, 0.5, 0.25, 1.0), (0.0,) * 16)


def driver_half(name, rollouts):
    """What the method computes of these rollouts in its driver half, [B,..]."""
    made = build({"name": name, **FELT.get(name, {})}).signals(rollouts, {})
    found = {"advantages": made.advantages, "low": made.low, "high": made.high, **made.extras}
    return {k: v for k, v in found.items() if isinstance(v, torch.Tensor) and v.ndim}


def depends_on_the_others(name):
    """Whether a group's numbers change where a group of equal rewards is left out."""
    rollouts = make(rewards=GROUPS).rollouts
    flat = rollouts.group == rollouts.group.max()
    whole, filtered = driver_half(name, rollouts), driver_half(name, rollouts[~flat])
    return any(not torch.allclose(v[~flat], filtered[k], atol=1e-9) for k, v in whole.items())


def test_the_methods_that_need_the_unfiltered_batch_are_listed():
    inert = [name for name, method in METHODS.items() if method.flat_group_is_inert]
    whole = {n for n in inert if METHODS[n].whole_batch or METHODS[n].params().whole_batch}
    assert {name for name in inert if depends_on_the_others(name)} == whole
    assert {"apmpo", "clip_cov"} <= whole

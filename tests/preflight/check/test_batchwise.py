"""Which methods take statistics of a whole rollout batch: what leaves out groups changes them."""

import torch
from batches import make

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS

# of these few tokens with their defaults: one, and all
FELT = {"clip_cov": {"share": 0.2}, "m2po": {"threshold": 0.004}, "kl_cov": {"share": 0.2}}
GROUPS = ((0.0, 1.0) * 3, (0.0, 0.0, 1.0), (0.0, 0.5, 0.25, 1.0), (0.0,) * 16)


def driver_half(name, rollouts):
    """What the method computes of these rollouts in its driver half, [B,..]."""
    made = build({"name": name, **FELT.get(name, {})}).signals(rollouts, {})
    found = {"advantages": made.advantages, "low": made.low, "high": made.high, **made.extras}
    return {k: v for k, v in found.items() if isinstance(v, torch.Tensor) and v.ndim}


def depends_on_the_others(name):
    """Whether a group's numbers change where another group is left out."""
    rollouts = make(rewards=GROUPS).rollouts
    whole = driver_half(name, rollouts)
    for left_out in (rollouts.group.max(), rollouts.group.min()):  # all rewards equal; mixed
        rest = rollouts.group != left_out
        alone = driver_half(name, rollouts[rest])
        if any(not torch.allclose(v[rest], alone[k], atol=1e-9) for k, v in whole.items()):
            return True
    return False


def test_the_methods_that_need_the_whole_batch_are_listed():
    whole = {n for n, m in METHODS.items() if m.whole_batch or m.params().whole_batch}
    remembering = {name for name, method in METHODS.items() if "memory" in method.needs}
    assert {name for name in METHODS if depends_on_the_others(name)} - remembering == whole
    assert {"apmpo", "clip_cov", "reinforce_pp", "gdpo"} <= whole

"""What the atlas asks: arms beside cells, one axis at a time from a base, and pairs that matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from nemo_algos.algorithms.methods import METHODS

CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "token IS": {"rollout_is": "token"},
    "sequence IS": {"rollout_is": "sequence"},
    "old_policy: sampler": {"bypass_mode": True},
}
# what is no method of its own: variants, ablations, combinations
VARIANTS: dict[str, dict[str, Any]] = {
    "clip_high": {"name": "grpo", "clip_high": 0.28},
    "dapo": {"name": "grpo", "clip_high": 0.28, "aggregation": "token"},
    "etr_macro": {"name": "etr", "micro": 0.0},
    "etr_inverse": {"name": "etr", "direction": "inverse"},
    "quatro_geometric": {"name": "quatro", "ratio": "geometric_mean"},
    "quatro_0.1": {"name": "quatro", "delta": 0.1},
    "erpo_outcome": {"name": "erpo", "process_weight": 0.0},
    "erpo_ungated": {"name": "erpo", "gate_sharpness": 0.0},
    "apmpo_group": {"name": "apmpo", "statistics": "group"},
    "apmpo_arithmetic": {"name": "apmpo", "statistics": "group", "gamma": 0.0},
    "apmpo_power": {"name": "apmpo", "statistics": "group", "clip_max": 0.2},
    "erpo+etr": {"advantages": "erpo", "bounds": "etr"},
    "maxrl+etr": {"advantages": "maxrl", "bounds": "etr"},
    "grpo+entropy": {"name": "grpo", "terms": {"entropy": {"coef": 0.01}}},
}
ARMS: dict[str, dict[str, Any]] = {name: {"name": name} for name in METHODS} | VARIANTS
# of one batch, by how many it is used for: what is measured is the update of this number
UPDATES = {10: (1, 4, 10), 40: (40,)}
RATES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)
STALE = ("stale 1", "stale 4", "stale 16")
NOISE = ("noise 0.003", "noise 0.03", "noise 0.3", "noise 0.3 again")
CORRECTED = ("stale 16", "noise 0.3", "top-p 0.9")


class Cell(NamedTuple):
    """Where an arm is asked.

    prompts: in a batch; the second has a pass rate of 0.5. sampler: same as the trainer; stale K:
    the policy K exact steps ago; noise S: logits with a lasting error of S nats; top-p P. updates:
    how many the batch is used for.
    """

    world: str = "small"
    pass_rate: float = 0.3
    prompts: int = 1
    group: int = 8
    sampler: str = "same"
    correction: str = "none"
    updates: int = 10


def cells() -> Iterator[Cell]:
    """All cells, the base first."""
    base = Cell()
    yield base
    yield from (base._replace(pass_rate=p) for p in RATES if p != base.pass_rate)
    yield from (base._replace(group=n, pass_rate=p) for n in (2, 4, 16) for p in (0.03, 0.3))
    yield from (base._replace(updates=40, pass_rate=p) for p in (0.03, 0.3))
    yield from (base._replace(prompts=2, pass_rate=p) for p in (0.03, 0.9))
    for world in ("sparse", "dense", "several", "rare", "deceptive"):
        yield base._replace(world=world, pass_rate=0.1)
    for sampler in (*STALE, *NOISE, "top-p 0.9"):
        yield base._replace(sampler=sampler)
    for sampler in CORRECTED:
        yield from (base._replace(sampler=sampler, correction=c) for c in [*CORRECTIONS][1:])

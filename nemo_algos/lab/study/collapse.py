"""When a run has collapsed: hardly any right answer, hardly any choice left, or no numbers.

Before training the countdown models have pass@1 .35 and, with experts, .27, and entropies of .28
and .30 nats.
"""

from collections.abc import Mapping, Sequence

PASS, ENTROPY = 0.15, 0.02


def collapsed(row: Mapping[str, float | str]) -> bool:
    """Whether a run of results.csv broke off, or ended below PASS or ENTROPY."""
    late = float(row.get("entropy/exact", 0.0))
    return bool(row.get("failed")) or float(row["pass@1"]) < PASS or late < ENTROPY


def collapse_step(steps: Sequence[Mapping[str, float]]) -> int:
    """The step from which on reward or entropy stay below; their number, where they do not."""
    low = [s["reward/mean"] < PASS or s["entropy/exact"] < ENTROPY for s in steps]
    return max((i + 1 for i, is_low in enumerate(low) if not is_low), default=0)

"""How far the sampler is from the trainer at each step, where that leads, and where a run ends.

d = log pi_trainer - log pi_sampler of a sampled token, nats. Loads no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from math import inf, sqrt
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 50  # steps that a trend is of
HORIZON = 1000  # steps ahead that a forecast is of
SIGMAS = 4  # 3e-5 a test, and a run makes hundreds: 11 steps at least
SICK = (
    0.05  # mean |d|, nats, where no limit is set: NeMo-RL's guides, token_mult_prob_error of 1.05
)


def measure(
    old_logprobs: Tensor, gen_logprobs: Tensor, mask: Tensor, threshold: float
) -> dict[str, float]:
    """Mean, 99th percentile (nearest rank) and max of |d|; how many are not finite, or beyond.

    The share beyond the threshold counts what is not finite; the others leave it out.
    old_logprobs, gen_logprobs [B,S]: the trainer's and the sampler's, nats; mask [B,S] bool.
    A statistic of nothing is left out.
    """
    gap = (old_logprobs[mask].double() - gen_logprobs[mask].double()).abs()
    finite = gap[gap.isfinite()]
    out = {"mismatch/nonfinite": float(len(gap) - len(finite))}
    if len(gap):
        out["mismatch/share_above"] = float((~(gap <= threshold)).double().mean())
    if len(finite):
        rank = -(-99 * len(finite) // 100)
        out["mismatch/mean"] = float(finite.mean())
        out["mismatch/p99"] = float(finite.kthvalue(rank).values)
        out["mismatch/max"] = float(finite.max())
    return out


class Monitor:
    """Each step's distance, whether it rises from step to step, and the limit that ends the run."""

    def __init__(self, threshold: float = 0.5, stop_above: float | None = None) -> None:
        self.threshold = threshold
        self.stop_above = stop_above
        self.limit = stop_above or SICK
        self.means = deque[float](maxlen=WINDOW)
        self.rising = False

    def of(
        self, old_logprobs: Tensor, gen_logprobs: Tensor, mask: Tensor
    ) -> tuple[dict[str, float], str]:
        """`measure` and `rise` of a step, and a sentence where a rise begins that will matter.

        Raises FloatingPointError where the mean is above the limit, or with a limit and a log-prob
        that is not finite.
        """
        found = measure(old_logprobs, gen_logprobs, mask, self.threshold)
        self._hold(found)
        if "mismatch/mean" in found:
            self.means.append(found["mismatch/mean"])
        found |= rise(self.means, self.limit)
        before = self.rising
        self.rising = found.get("mismatch/steps_left", inf) < HORIZON
        return found, "" if before or not self.rising else self._forecast(found)

    def _forecast(self, found: dict[str, float]) -> str:
        limit = "mismatch.stop_above" if self.stop_above else "the level of failing runs"
        slope = found["mismatch/slope"]
        left = found["mismatch/steps_left"]
        return (
            f"mismatch/mean rises by {slope:.1e} nats per step and will reach {self.limit:g} "
            f"({limit}) in about {left:.0f} steps. Check that the sampler receives all new weights."
        )

    def _hold(self, found: dict[str, float]) -> None:
        if self.stop_above is None:
            return
        if found["mismatch/nonfinite"] or found.get("mismatch/mean", 0.0) > self.stop_above:
            values = ", ".join(f"{k.removeprefix('mismatch/')} {v:.3g}" for k, v in found.items())
            raise FloatingPointError(
                "sampler and trainer log-probs differ by more than "
                f"`mismatch.stop_above={self.stop_above:g}` "
                f"(mean |log-ratio| in nats): {values}. This batch was not trained on. Check that "
                "new weights reach the sampler, that both use the same temperature, and the "
                "precision of the sampler. Otherwise raise `mismatch.stop_above`."
            )


def rise(means: Sequence[float], limit: float) -> dict[str, float]:
    """mismatch/slope, nats a step, mismatch/steps_left to the limit; {} where chance explains it.

    Mann and Kendall's test, S = sum of sign(x_j - x_i) over steps i < j, against its variance
    n (n - 1) (2 n + 5) / 18 of values in any order; Theil and Sen's slope, the median of
    (x_j - x_i) / (j - i), from the median level.
    """
    pairs = [(b - a, j - i) for (i, a), (j, b) in combinations(enumerate(means), 2)]
    n = len(means)
    score = sum((d > 0) - (d < 0) for d, _ in pairs)
    if score - 1 <= SIGMAS * sqrt(n * (n - 1) * (2 * n + 5) / 18):
        return {}
    slope = median(d / steps for d, steps in pairs)
    level = median(x + slope * (n - 1 - i) for i, x in enumerate(means))
    left = max(0.0, (limit - level) / slope) if slope else inf
    return {"mismatch/slope": slope, "mismatch/steps_left": left}

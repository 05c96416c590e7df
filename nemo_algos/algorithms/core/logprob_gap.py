"""How far the sampler is from the trainer at each step, what is wrong with it, where a run ends.

d = log pi_trainer - log pi_sampler of a sampled token, nats. Loads no torch.
"""

from __future__ import annotations

from collections import deque
from math import exp, inf, log
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.shapes import Mask, PerToken

# of mean |d|, docs/mismatch.md: what BF16 explains; what it does not (NeMo-RL's guides:
# token_mult_prob_error of 1.05), and FP8 neither
USUAL = 0.02
SICK = 0.05
SICK_FP8 = 0.06
WINDOW = 20  # steps, of a level that rises
SURPRISE = 16  # nats: a chance of 1e-7 for one number of rare tokens


def sick(precision: str) -> float:
    """The mean |d| that a precision, by its name, does not explain; FP4 has no usual level."""
    if "fp4" in precision:
        return inf
    return SICK_FP8 if "fp8" in precision else SICK


def measure(
    old_logprobs: PerToken, gen_logprobs: PerToken, mask: Mask, threshold: float
) -> dict[str, float]:
    """Mean, 99th percentile (nearest rank) and max of |d|; how many are not finite, or beyond.

    The share beyond the threshold counts what is not finite; the others leave it out.
    old_logprobs, gen_logprobs [B,S]: the trainer's and the sampler's, nats; mask [B,S] bool.
    A statistic of nothing is left out, and so are rare tokens that chance explains (`rare`).
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
    return out | rare(finite)


def rare(gap: Tensor) -> dict[str, float]:
    """Of |d| [N]: mismatch/rare tokens of mismatch/rare_from nats or more; {} where chance does it.

    A token is sampled with d > a, or with d < -a where the trainer's probabilities hold, with a
    probability of at most exp(-a) (Markov's inequality for the ratio of two distributions). So of N
    tokens m = 2 N exp(-a) are expected at most, and k or more have a probability of at most
    exp(-k (log(k / m) - 1)) (Chernoff's bound). The k that surprises most is taken.
    """
    large = gap[gap > 1].sort(descending=True).values
    if not len(large):
        return {}
    count = large.new_ones(len(large)).cumsum(0)
    surprise = count * (count.log() - log(2 * len(gap)) + large - 1)
    at = int(surprise.argmax())
    if surprise[at] <= SURPRISE:
        return {}
    return {"mismatch/rare": at + 1.0, "mismatch/rare_from": float(large[at])}


class Monitor:
    """Each step's distance, what is wrong with it, and the limit that ends the run.

    sick: the mean |d| that is told, as of `sick`.
    """

    def __init__(
        self, threshold: float = 0.5, stop_above: float | None = None, sick: float = SICK
    ) -> None:
        self.threshold = threshold
        self.stop_above = stop_above
        self.sick = sick
        self.means = deque[float](maxlen=WINDOW)
        self.lowest = inf  # median of WINDOW steps, and the largest of these
        self.above = inf
        self.told = [0.0] * 4  # the size of each thing that is told, when it last was

    def of(
        self, old_logprobs: PerToken, gen_logprobs: PerToken, mask: Mask
    ) -> tuple[dict[str, float], str]:
        """`measure` of a step, and what is news of it; each again where it has doubled.

        Raises FloatingPointError where the mean is above the limit, or with a limit and a log-prob
        that is not finite.
        """
        found = measure(old_logprobs, gen_logprobs, mask, self.threshold)
        self._hold(found)
        mean = found.get("mismatch/mean", 0.0)
        least = found.get("mismatch/rare_from", 0.0)
        lost = found["mismatch/nonfinite"]
        tokens = int(mask.sum())
        level = mean * (mean > self.sick)
        risen = self.risen(mean) * (not level)
        seen = {
            f"the log-probs of {lost:.0f} of {tokens} tokens are not finite": lost,
            f"{found.get('mismatch/rare', 0):.0f} of {tokens} tokens differ by {least:.2g} nats or "
            "more between sampler and trainer, where sampling explains "
            f"{2 * tokens * exp(-least):.2g}": found.get("mismatch/rare", 0.0),
            f"mismatch/mean is {mean:.2g} nats, above {self.sick:g}, which the precision does not "
            "explain": level,
            f"mismatch/mean has risen from {self.lowest:.2g} to {risen:.2g} nats": risen,
        }
        said = list[str]()
        for i, (text, size) in enumerate(seen.items()):
            if size and size >= 2 * self.told[i]:
                self.told[i] = size
                said.append(text)
        if not said:
            return found, ""
        return found, (
            f"{'; '.join(said)}. Check that all new weights reach the sampler; `mismatch.dump` and "
            "`nemo-algos mismatch` name the cause"
        )

    def risen(self, mean: float) -> float:
        """The median of the last steps, where it is above the usual and twice the lowest one; or 0.

        All these steps must be above all those of the lowest: a mean that wavers slowly within its
        own spread does neither.
        """
        self.means.append(mean)
        if len(self.means) < WINDOW:
            return 0.0
        level = median(self.means)
        if level < self.lowest:
            self.lowest = level
            self.above = max(self.means)
        risen = level >= 2 * self.lowest and min(self.means) > self.above
        return level if risen and level > USUAL else 0.0

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

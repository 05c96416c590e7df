"""How far the sampler is from the trainer: measured each step, with a limit that ends the run.

d = log pi_trainer - log pi_sampler of a sampled token, nats. Loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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


def monitor(
    old_logprobs: Tensor,
    gen_logprobs: Tensor,
    mask: Tensor,
    threshold: float,
    stop_above: float | None,
) -> dict[str, float]:
    """`measure`; FloatingPointError where the mean is above the limit or a log-prob not finite."""
    distances = measure(old_logprobs, gen_logprobs, mask, threshold)
    if stop_above is None:
        return distances
    if distances["mismatch/nonfinite"] or distances.get("mismatch/mean", 0.0) > stop_above:
        values = ", ".join(f"{k.removeprefix('mismatch/')} {v:.3g}" for k, v in distances.items())
        raise FloatingPointError(
            f"the sampler and the trainer disagree by more than mismatch.stop_above={stop_above:g} "
            f"(mean |log-ratio| in nats): {values}; this batch was not trained on. Check that new "
            "weights reach the sampler and that both use one temperature, then lower the sampler's "
            "quantization; or raise mismatch.stop_above"
        )
    return distances

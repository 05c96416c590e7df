"""The `rollout_correction:` section (names, presets and thresholds of verl 0.9.1), and its weights.

    l = log pi_old - log pi_sampler of each token; with old_policy: sampler, log pi - log pi_sampler
    J = mean, over the tokens kept, of  w min(r' A', clip(r') A')   or   w A' log pi

The driver half is `correct`, the worker half, with old_policy: sampler, `bypass_weights`; the
formulas are algorithms/core/importance.py's. Loads no torch before a function runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator, model_validator

from nemo_algos.algorithms import core
from nemo_algos.findings import Finding, Section, did_you_mean, refuse_first

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.core.importance import Cut
    from nemo_algos.algorithms.core.surrogate import Mean
    from nemo_algos.algorithms.kernel import Method
    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken

WEIGHTS = "rollout_is_weights"  # the signal's name

_TOKEN = {"rollout_is": "token", "rollout_is_threshold": 2.0}
_SEQUENCE = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
_ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_PRODUCT = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
_GEOMETRIC = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3 = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_CLIP = {"bypass_mode": True, "loss_type": "ppo_clip"}
_REINFORCE = {"bypass_mode": True, "loss_type": "reinforce"}
PRESETS: dict[str, dict[str, Any]] = {
    "disabled": {},
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQUENCE,
    "decoupled_token_icepop": _ICEPOP,
    "decoupled_seq_is_rs": _SEQUENCE | _PRODUCT,
    "decoupled_geo_rs": _GEOMETRIC,
    "decoupled_geo_rs_seq_tis": _SEQUENCE | _GEOMETRIC,
    "decoupled_geo_rs_token_tis": _TOKEN | _GEOMETRIC,
    "decoupled_k3_rs": _K3,
    "decoupled_k3_rs_seq_tis": _SEQUENCE | _K3,
    "decoupled_k3_rs_token_tis": _TOKEN | _K3,
    "bypass_ppo_clip": _CLIP,
    "bypass_ppo_clip_geo_rs": _CLIP | _GEOMETRIC,
    "bypass_ppo_clip_k3_rs": _CLIP | _K3,
    "bypass_pg_is": _REINFORCE | _SEQUENCE,
    "bypass_pg_token_icepop": _REINFORCE | _ICEPOP,
    "bypass_pg_geo_rs": _REINFORCE | _GEOMETRIC,
    "bypass_pg_geo_rs_seq_tis": _REINFORCE | _SEQUENCE | _GEOMETRIC,
    "bypass_pg_geo_rs_token_tis": _REINFORCE | _TOKEN | _GEOMETRIC,
}
NOISE = 0.07  # nats a token: the sampler of NeMo-RL#2269, whose KL to the trainer is 2.5e-3
_POOLS = ("token", "seq_sum", "seq_mean", "seq_max")
_KINDS = ("k1", "k2", "k3")
OPTIONS = [f"{p}_{k}" for p in _POOLS for k in _KINDS if f"{p}_{k}" != "seq_max_k1"]


class CorrectionConfig(Section):
    """Weights and rejections for a sampler that differs from the trainer, with verl's names."""

    preset: str | None = None
    """Sets the other keys. Keys that you write replace the preset's."""
    rollout_is: Literal["token", "geometric", "sequence"] | None = None
    """Weight of each token, geometric mean over the response (not in verl), or product, which
    vanishes in long responses.
    """
    rollout_is_threshold: float | str = 2.0
    """HIGH caps the weights (TIS); "LOW_HIGH" sets weights outside it to 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    """Rules that reject tokens or responses, such as token_k1,seq_mean_k3."""
    rollout_rs_threshold: float | str | None = None
    """The largest divergence, one for all or one each. For k1, bounds of the ratio: "LOW_HIGH", or
    HIGH for 1 / HIGH to HIGH.
    """
    bypass_mode: bool = False
    """Use the sampler as the old policy, as `old_policy: sampler` does."""
    loss_type: Literal["ppo_clip", "reinforce"] | None = None
    """Loss with bypass_mode: true. Default: the method's."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        name = data.get("preset") if isinstance(data, dict) else None
        if isinstance(name, str) and name in PRESETS:
            return PRESETS[name] | data
        return data

    @field_validator("preset")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}{did_you_mean(name, list(PRESETS))}")
        return name

    @model_validator(mode="after")
    def _is_whole(self) -> CorrectionConfig:
        _ = self.cut, self.rejections
        if self.rollout_is is None:
            for name in ("rollout_is_threshold", "rollout_is_batch_normalize"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"`{name}` only applies with rollout_is. Set that, or remove it."
                    )
        refuse_first(
            (
                self.loss_type and not self.bypass_mode,
                "loss_type only applies with `old_policy: sampler` (bypass_mode: true). Remove it.",
            ),
            (
                self.bypass_mode and self.rollout_is_batch_normalize,
                "`rollout_is_batch_normalize` needs the weights of the whole batch, but with "
                "`bypass_mode: true` each micro-batch has its own. Set one of them to false.",
            ),
        )
        return self

    @property
    def active(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.rollout_is or self.rollout_rs or self.bypass_mode)

    @property
    def weighs(self) -> bool:
        """Whether the driver half gives weights; in bypass_mode the worker half does."""
        return self.rollout_is is not None and not self.bypass_mode

    @property
    def rejects(self) -> bool:
        """Whether the driver half rejects; in bypass_mode the worker half does."""
        return self.rollout_rs is not None and not self.bypass_mode

    @property
    def cut(self) -> tuple[Cut, float, float]:
        """How the weights are cut, and their bounds."""
        low, high = _bounds("rollout_is_threshold", self.rollout_is_threshold)
        if high < 1:
            raise ValueError(
                f"rollout_is_threshold={high:g} is below 1, so a ratio of 1 would be cut (YAML "
                "reads 0.5_5 as 0.55: write '0.5_5.0')"
            )
        if low is None:
            return ("tis", 0.0, high)
        return ("icepop", low, high)

    @property
    def rejections(self) -> dict[str, tuple[float, float]]:
        """The options, and the bounds of their divergences."""
        key = "rollout_rs_threshold"
        given = self.rollout_rs_threshold
        options = list(dict.fromkeys(_listed(self.rollout_rs)))
        if (given is None) != (not options):
            raise ValueError(f"`rollout_rs` and `{key}` need each other. Set both, or neither.")
        unknown = [option for option in options if option not in OPTIONS]
        if unknown:
            near = did_you_mean(unknown[0], OPTIONS)
            raise ValueError(f"unknown option of `rollout_rs`: {unknown[0]}{near}")
        thresholds = _listed(given)
        if len(thresholds) not in (1, len(options)) and options:
            raise ValueError(
                f"`{key}` has {len(thresholds)} thresholds for {len(options)} options of "
                "rollout_rs. Give one for all, or one for each."
            )
        every = thresholds if len(thresholds) > 1 else thresholds * len(options)
        return {o: _divergences(key, o, t) for o, t in zip(options, every, strict=True)}


def expected_product(tokens: int, cut: tuple[Cut, float, float], noise: float = NOISE) -> float:
    """The mean of a response's cut product of weights, where the policy has not changed at all.

    log W ~ N(-s^2 / 2, s^2), s = noise sqrt(tokens): unbiased noise of so many nats a token.
    """
    kind, low, high = cut
    s = noise * math.sqrt(tokens)
    mean = _mean_below(high, s) - _mean_below(low, s)
    if kind == "tis":
        mean += high * (1 - NormalDist().cdf((math.log(high) + s * s / 2) / s))
    return mean


def _mean_below(weight: float, s: float) -> float:
    """The part of the mean of W that values below `weight` have."""
    if not weight:
        return 0.0
    return NormalDist().cdf((math.log(weight) - s * s / 2) / s)


def vanishing(correction: CorrectionConfig, tokens: int) -> Iterator[Finding]:
    """Where products of so many tokens' weights would leave little of the gradient: a warning."""
    if correction.rollout_is != "sequence":
        return
    mean = expected_product(tokens, correction.cut)
    if mean < 0.5:
        yield Finding(
            "rollout_correction.rollout_is",
            f"'sequence' multiplies the weights of all tokens. At {tokens} tokens and a sampler "
            f"noise of {NOISE} nats per token the mean weight is {mean:.2g}, so most of the "
            "gradient is lost. Set it to geometric or token.",
            "warning",
        )


def _listed(written: float | str | None) -> list[str]:
    return [part.strip() for part in str(written or "").split(",") if part.strip()]


def _bounds(key: str, written: float | str) -> tuple[float | None, float]:
    """LOW_HIGH, or HIGH alone. Raises ValueError."""
    low, _, high = str(written).rpartition("_")
    try:
        bounds = float(low) if low else None, float(high)
    except ValueError:
        raise ValueError(f"{key}={written!r} must be a number, or LOW_HIGH") from None
    if not 0 < (bounds[0] or bounds[1]) <= bounds[1] < math.inf:
        raise ValueError(f"{key}={written!r}: bounds must be above 0 and in ascending order")
    return bounds


def _divergences(key: str, option: str, written: str) -> tuple[float, float]:
    low, high = _bounds(key, written)
    if option.endswith("k1"):
        low = 1 / high if low is None else low
        if low > high:
            raise ValueError(
                f"{key}={written} means 1 / {high:g} to {high:g}, which is empty. Set it above 1."
            )
        return math.log(low), math.log(high)
    if low is not None:
        raise ValueError(
            f"{option} takes one threshold, the largest divergence, got {key}={written}"
        )
    return -math.inf, high


def correct(config: CorrectionConfig, rollouts: Rollouts) -> tuple[Rollouts, dict[str, float]]:
    """The rollouts as signals and loss take them, and metrics; the driver half.

    What is rejected leaves the mask: no mean counts it, nor do the KL penalty and the terms.
    With old_policy: sampler nothing is rejected yet. Raises ValueError where the sampler's
    log-probs are missing, or any is not finite.
    """
    if not config.active:
        return rollouts, {}
    mask = rollouts.mask
    sampled = _sampler_logprobs(rollouts)
    if config.bypass_mode:
        return replace(rollouts, old_logprobs=sampled), {}
    log_ratio = core.importance.gap(rollouts.old_logprobs.double(), sampled, mask)
    kept = core.importance.kept_tokens(log_ratio, mask, config.rejections)
    weights, weighed = _rollout_weights(config, log_ratio, mask)
    corrected = replace(rollouts, mask=kept, rollout_is_weights=weights.expand(mask.shape))
    return corrected, _rejection_metrics(kept, mask) | weighed


def check_corrected(config: CorrectionConfig, rollouts: Rollouts) -> None:
    """Raises ValueError where these are not what `correct` gives."""
    if not config.active:
        return
    moved = rollouts.old_logprobs != rollouts.gen_logprobs
    if moved[rollouts.mask].any() if config.bypass_mode else rollouts.rollout_is_weights is None:
        raise ValueError(
            "these rollouts are not corrected. Give `Algorithm.signals` the result of "
            "`Algorithm.correct`."
        )


def bypass_weights(
    config: CorrectionConfig, logprobs: PerToken, sampled: Tensor, mask: Mask, mean: Mean
) -> Tensor | None:
    """The factor of each token's term with old_policy: sampler, [B,S]; None where it is 1.

    The worker half: weights are those of the policy as it is now, so that what has drifted away is
    rejected too. A rejected token's factor is 0; it still counts in a token mean, and not in its
    sequence's.
    """
    if not (config.rollout_is or config.rollout_rs):
        return None
    log_ratio = core.importance.gap(logprobs, sampled, mask)
    kept = core.importance.kept_tokens(log_ratio, mask, config.rejections)
    factor = log_ratio.new_ones(mask.shape)
    if config.rollout_is:
        factor = core.importance.importance(log_ratio, mask, config.rollout_is, *config.cut)
    if mean == "sequence":
        factor = factor * core.importance.length_ratio(kept, mask)
    return factor.expand(mask.shape).where(kept, 0.0)


def sampler_weights(
    method: Method,
    cut: tuple[Cut | None, float, float],
    old: PerToken,
    gen: PerToken,
    mask: Mask,
    turn: Tensor | None = None,
) -> Tensor:
    """The weights of `loss_fn.use_importance_sampling_correction`, [B,S] or [B,1].

    A token has its own where the method's ratio is a token's, else the geometric mean of its turn
    (turn [B,S] says which) or sequence, whichever the ratio is of: the product's truncated mean
    goes to 0 with the length, whatever the policy does.
    """
    log_ratio = core.importance.gap(old, gen, mask)
    if method.ratio == "turn":
        assert turn is not None
        log_ratio = core.turns.means(log_ratio, core.turns.index(turn, mask), mask)
    level = "geometric" if method.ratio == "sequence" else "token"
    return core.importance.importance(log_ratio, mask, level, *cut)


def sampler_metrics(
    method: Method,
    cut: tuple[Cut | None, float, float],
    old: PerToken,
    gen: PerToken,
    mask: Mask,
    turn: Tensor | None = None,
) -> dict[str, float]:
    """The metrics of those weights over a rollout batch."""
    whole = sampler_weights(method, (None, 0.0, math.inf), old, gen, mask, turn)
    weights = sampler_weights(method, cut, old, gen, mask, turn)
    return core.importance.weight_metrics(weights, whole, mask)


def _rollout_weights(
    config: CorrectionConfig, log_ratio: PerToken, mask: Mask
) -> tuple[Tensor, dict[str, float]]:
    """[B,S], [B,1], or 1 where none are asked for; and their metrics."""
    if config.rollout_is is None:
        return log_ratio.new_ones(()), {}
    raw = core.importance.importance(log_ratio, mask, config.rollout_is)
    weights = core.importance.importance(log_ratio, mask, config.rollout_is, *config.cut)
    metrics = core.importance.weight_metrics(weights, raw, mask)
    mean = core.importance.mean_weight(weights, mask)
    if config.rollout_is_batch_normalize and mean > 0:
        weights = weights / mean
    return weights, metrics


def _sampler_logprobs(rollouts: Rollouts) -> Tensor:
    sampled = rollouts.gen_logprobs
    if sampled is None:
        raise ValueError("rollout_correction needs gen_logprobs [B, S], the sampler's log-probs")
    bad = rollouts.mask & ~(sampled + rollouts.old_logprobs).isfinite()
    if bad.any():
        row, position = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{int(bad.sum())} response tokens have log-probs that are not finite, from the "
            f"sampler or the trainer (first: sequence {row}, position {position}), so they cannot "
            "be corrected. Sample without top_p and top_k, and look for the NaN in the model."
        )
    return sampled


def _rejection_metrics(kept: Tensor, mask: Mask) -> dict[str, float]:
    lost = (mask & ~kept).any(1).sum()
    tokens = mask.sum()
    return {
        "correction/rejected_tokens": float(1 - kept.sum() / tokens) if tokens else 0.0,
        "correction/rejected_sequences": float(lost / mask.any(1).sum().clamp(min=1)),
    }

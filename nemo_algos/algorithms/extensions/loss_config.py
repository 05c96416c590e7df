"""The sections `loss_fn:` and `mismatch:` of a config, and what cannot be together. No torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.algorithms.kernel import keep_advantages
from nemo_algos.findings import Finding, Section, refuse_first

if TYPE_CHECKING:
    from nemo_algos.algorithms.algorithm import Algorithm
    from nemo_algos.algorithms.core.importance import Cut, Weights

SET_BY_METHOD = {
    "ratio_clip_min": "the method clips. Remove it (some methods have `method.clip_low`)",
    "ratio_clip_max": "the method clips. Remove it (some methods have `method.clip_high`)",
    "ratio_clip_c": "the method sets the dual clip. Set `method.dual_clip` instead",
    "token_level_loss": "the method averages. Remove it (some have `method.aggregation`)",
    "sequence_level_importance_ratios": "the method sets it. Set `method.name: gspo` instead",
    "kl_coef": "the key has NeMo-RL's name. Set `loss_fn.reference_policy_kl_penalty` instead",
}


class MismatchConfig(Section):
    """The `mismatch:` section: a limit on how far the sampler is from the trainer."""

    threshold: float = Field(default=0.5, gt=0)
    """Count tokens whose |log pi_trainer - log pi_sampler| is above this, nats (.5: ratio 1.65)."""
    stop_above: float | None = Field(default=None, gt=0)
    """End the run where a step's mean |log pi_trainer - log pi_sampler| is above this, nats."""
    dump: int = Field(default=0, ge=0, le=10**9)
    """Write log-probs for `nemo-algos mismatch` every N-th step, and at a step that
    mismatch.stop_above ends.
    """
    probe: Annotated[int, Field(ge=0)] | Literal["on_stop"] = 0
    """Check in the first two steps, every N-th, and one that mismatch.stop_above ends, whether new
    weights reach the sampler, on the run's first prompts. on_stop: in the first step and that one.
    """

    @model_validator(mode="after")
    def _something_stops(self) -> MismatchConfig:
        if self.probe == "on_stop" and self.stop_above is None:
            raise ValueError(
                "`mismatch.probe: on_stop`: nothing stops a run without `mismatch.stop_above`. "
                "Set that, or a number of steps"
            )
        return self


def no_anchor(penalty: float, kind: str) -> Iterator[Finding]:
    """Where the KL penalty in the loss does not hold the policy near the reference: a warning."""
    if penalty and kind == "k1":
        yield Finding(
            "loss_fn.reference_policy_kl_type",
            "the gradient of k1 does not depend on the reference and is 0 on average: it adds "
            "noise, and the policy is free to leave the reference. Set it to k2, k3 or unbiased "
            "(NeMo-RL: k2 or k3).",
            "warning",
        )


class LossConfig(Section):
    """The `loss_fn:` section, with NeMo-RL's names. Keys that the method sets are refused."""

    reference_policy_kl_penalty: float = Field(default=0.0, ge=0)
    """Weight of the KL to the initial policy."""
    reference_policy_kl_type: Literal["k1", "k2", "k3", "unbiased"] = "k3"
    """unbiased (ours): k3 times the ratio to the old policy. Its gradient is the gradient of the
    KL.
    """
    use_importance_sampling_correction: bool = False
    """Weigh tokens by trainer over sampler."""
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    truncated_importance_sampling_ratio: float | None = Field(default=None, gt=0)
    """Upper bound of the weights."""
    truncated_importance_sampling_ratio_min: float | None = Field(default=None, ge=0)
    """Lower bound of the weights, for icepop and seq-mask-tis."""
    on_nonfinite: Literal["error", "report"] = "error"
    """What to do if a log-prob is not finite: end the run, or drop and report the token."""

    def warn(self) -> None:
        """Warn of what `check` would warn of, where there is no `check`: in other trainers."""
        kind = self.reference_policy_kl_type
        for finding in no_anchor(self.reference_policy_kl_penalty, kind):
            warnings.warn(str(finding), stacklevel=3)

    @model_validator(mode="before")
    @classmethod
    def _refuse_derived(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        written = []
        for k, reason in SET_BY_METHOD.items():
            if k in data:
                written.append(f"`{k}`: {reason}")
        if written:
            raise ValueError("; ".join(written))
        return data

    @model_validator(mode="after")
    def _correction_is_whole(self) -> LossConfig:
        kind = self.truncated_importance_sampling_type
        low = self.truncated_importance_sampling_ratio_min
        high = self.truncated_importance_sampling_ratio
        refuse_first(
            (
                kind and not self.use_importance_sampling_correction,
                f"{kind} needs `use_importance_sampling_correction: true`",
            ),
            (
                (kind is None) != (high is None),
                "`truncated_importance_sampling_type` and `truncated_importance_sampling_ratio` "
                "must be set together",
            ),
            (
                kind in ("icepop", "seq-mask-tis") and low is None,
                f"{kind} needs `truncated_importance_sampling_ratio_min`",
            ),
            (
                low is not None and (high is None or low > high),
                "`truncated_importance_sampling_ratio_min` must be at most "
                "`truncated_importance_sampling_ratio`",
            ),
        )
        return self

    @property
    def cut(self) -> tuple[Cut | None, float, float]:
        """How off-policy weights are cut, and their bounds."""
        low = self.truncated_importance_sampling_ratio_min or 0.0
        high = self.truncated_importance_sampling_ratio or math.inf
        return self.truncated_importance_sampling_type, low, high


def centred_weights(algorithm: Algorithm, config: LossConfig) -> Weights | None:
    """How the weights of scores that are centred under the sampler are cut; None: all are 1.

    Raises ValueError where centering would not make the scores' mean 0.
    """
    correction = algorithm.correction
    form, method = algorithm.base.form, algorithm.base.method
    kind, low, high = config.cut
    refuse_first(
        (
            form != "logprob" or method.reweight is not keep_advantages,
            "score centering is of a loss A log pi: the ratio in the loss of "
            f"{algorithm.name} has a mean of its own. Set `method.name: gpg`.",
        ),
        (
            correction.active and (not correction.bypass_mode or correction.rollout_rs),
            "score centering needs the weight of every token that the sampler could have drawn. "
            "Remove `rollout_correction`, or set `old_policy: sampler` without rollout_rs.",
        ),
        (
            kind == "seq-mask-tis" or correction.rollout_is not in (None, "token"),
            "score centering takes weights of tokens, and a sequence's is none. Set "
            "`truncated_importance_sampling_type` to tis or icepop, or `rollout_is: token`.",
        ),
    )
    if correction.rollout_is:
        return correction.cut
    if config.use_importance_sampling_correction:
        return kind, low, high
    return None


def contradictions(
    correction: CorrectionConfig, weighed: bool, stop_above: float | None = None
) -> Iterator[Finding]:
    """What cannot be together with a rollout correction.

    weighed: loss_fn.use_importance_sampling_correction; stop_above: mismatch.stop_above.
    """
    if correction.active and weighed:
        yield Finding(
            "loss_fn.use_importance_sampling_correction",
            "`old_policy: sampler` or `rollout_correction` already corrects for the sampler. Set "
            "this to false, or remove the other.",
        )
    if correction.bypass_mode and stop_above is not None:
        yield Finding(
            "mismatch.stop_above",
            "with `old_policy: sampler` (bypass_mode) there are no trainer log-probs to compare. "
            "Remove it, or set `old_policy: trainer`.",
        )

"""What a method is: its parameters, functions of the driver half, two of the worker half; no torch.

driver half   once per rollout batch, sees whole groups:     advantages, bounds, extras
worker half   once per micro-batch, sees only its sequences: log_ratio, reweight
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.signals import Signals, Term
from nemo_algos.config import Section

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts

Need = Literal[
    "ref_logprobs", "entropy", "gen_logprobs", "unit_rewards", "reward_parts", "memory", "prompt",
    "drift", "entropy_gradient", "teacher", "sequence_advantages", "sequence_mean",
]  # fmt: skip


Slot = Literal["advantages", "bounds", "loss"]
T = TypeVar("T")
# which functions read a parameter; one without a mark is read by those of the loss
OfAdvantages = Annotated[T, "advantages"]
OfBounds = Annotated[T, "bounds"]
OfLoss = Annotated[T, "loss"]
Std = Literal["sample", "population", "none"]


def _undivided(std: Std) -> Std:
    if std != "none":
        raise ValueError("this method divides by no group's deviation: remove advantage_std")
    return std


Undivided = OfAdvantages[Annotated[Std, AfterValidator(_undivided)]]


class Params(Section):
    """Parameters of every method; its own class adds its paper's, with the paper's defaults."""

    advantage_std: OfAdvantages[Std] = "sample"
    max_log_ratio: float = Field(default=20.0, gt=0, le=20)
    dual_clip: float | None = Field(default=None, gt=1)

    @property
    def needs(self) -> frozenset[Need]:
        """What the method needs with these values, beside what its record says."""
        return frozenset()

    @property
    def changed(self) -> list[str]:
        """The parameters that have other values than their defaults."""
        fields = type(self).model_fields.items()
        defaults = {k: field.get_default(call_default_factory=True) for k, field in fields}
        return [k for k, default in defaults.items() if getattr(self, k) != default]

    @classmethod
    def slots(cls, key: str) -> set[str]:
        """The slots whose functions read this parameter."""
        marks = {mark for mark in cls.model_fields[key].metadata if isinstance(mark, str)}
        return marks or {"loss"}


class ClipParams(Params):
    """Constant bounds: the ratio is clipped to [1 - clip_low, 1 + clip_high]."""

    clip_low: OfBounds[float] = Field(default=0.2, ge=0, le=1)
    clip_high: OfBounds[float] = Field(default=0.2, ge=0)


def group_advantages(rollouts: Rollouts, params: Params) -> Term:
    """A_i = (R_i - mean) / (std + 1e-6) over the sequence's group, [B]."""
    groups = rollouts.groups
    return Term(core.groups.advantages(rollouts.rewards, groups, params.advantage_std))


def no_bounds(params: Params) -> tuple[float, float]:
    """The ratio is not clipped."""
    return float("inf"), float("inf")


def clip_bounds(params: ClipParams) -> tuple[float, float]:
    """[1 - clip_low, 1 + clip_high] for every token."""
    return params.clip_low, params.clip_high


def token_log_ratio(log_ratio: Tensor, mask: Tensor, signals: Signals, params: Params) -> Tensor:
    """Each token its own ratio, log r' = l_t, [B,S]."""
    return log_ratio


def keep_advantages(log_ratio: Tensor, mask: Tensor, signals: Signals, params: Params) -> Tensor:
    """A' = A."""
    return signals.advantages


@dataclass(frozen=True)
class Method:
    """One method: the surrogate's inputs as functions, and what the engines must know about it.

    advantages(rollouts, params)    -> Term of [B]
    bounds(rollouts, params)        -> Term of (low, high), where they depend on the batch
    constant_bounds(params)         -> (low, high), numbers, where they do not (bounds is None)
    extras: name -> function(rollouts, params) -> Term of [B], for the worker half
    log_ratio(l, mask, signals, params)           -> log r', [B,S] or [B,1]
    reweight(log r', mask, signals, params)       -> A'

    needs      of rollouts and engine; "memory": advantages takes a third argument, the memory of
               its Term before ({} at first); unit_rewards: of bounds and extras where the record
               has any, else of the advantages; "teacher": ref_logprobs are another model's; of
               partners: one advantage per sequence, J as a sequence mean
    per_token  of advantages, bounds and extras, those that are [B,S]
    form       ratio: min(r' A', clip(r') A');  logprob: A' log pi (score function)
    mean       of J and KL, where the parameters have no `aggregation` to choose it
    clips      where the bounds act: ratio (the surrogate's), token (inside log_ratio), weight
               (inside reweight), or None
    flat_group_is_inert  a group with equal rewards adds nothing to the gradient (KL apart)
    own        the slots that make the method what it is, where its functions do not tell
    """

    name: str
    paper: str
    params: type[Params]
    advantages: Callable[..., Term] = group_advantages
    bounds: Callable[[Rollouts, Any], Term] | None = None
    constant_bounds: Callable[[Any], tuple[float, float]] = clip_bounds
    extras: Mapping[str, Callable[[Rollouts, Any], Term]] = field(default_factory=dict)
    log_ratio: Callable[[Tensor, Tensor, Signals, Any], Tensor] = token_log_ratio
    reweight: Callable[[Tensor, Tensor, Signals, Any], Tensor] = keep_advantages
    per_token: frozenset[str] = frozenset()
    form: Literal["ratio", "logprob"] = "ratio"
    clips: Literal["ratio", "token", "weight"] | None = "ratio"
    ratio: Literal["token", "sequence"] = "token"
    mean: Literal["sequence", "token"] = "sequence"
    flat_group_is_inert: bool = True
    needs: frozenset[Need] = frozenset()
    own: frozenset[Slot] | None = None

    @property
    def essence(self) -> frozenset[Slot]:
        """The slots that make the method what it is; with all of them replaced it is gone."""
        if self.own is not None:
            return self.own
        loss = (self.log_ratio, self.reweight, self.form, bool(self.extras))
        parts: dict[Slot, bool] = {
            "advantages": self.advantages is not group_advantages,
            "bounds": bool(self.bounds) or self.constant_bounds not in (clip_bounds, no_bounds),
            "loss": loss != (token_log_ratio, keep_advantages, "ratio", False),
        }
        return frozenset(slot for slot, changed in parts.items() if changed)

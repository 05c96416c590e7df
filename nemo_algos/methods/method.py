"""What a method is: its parameters, two functions of the driver half, two of the worker half. Loads
no torch.

driver half   once per rollout batch, sees whole groups:     advantages, bounds, constants
worker half   once per micro-batch, sees only its sequences: log_ratio, reweight
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from nemo_algos.config import Section

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.methods.algorithm import Columns
    from nemo_algos.rollouts import Rollouts

Need = Literal["ref_logprobs", "entropy", "unit_rewards"]


class Params(Section):
    """Parameters that every method has. A method's own class adds its paper's, with the paper's
    defaults."""

    advantage_std: Literal["sample", "population", "none"] = "sample"
    max_log_ratio: float = Field(default=20.0, gt=0, le=20)
    dual_clip: float | None = Field(default=None, gt=1)


class ClipParams(Params):
    """Constant bounds: the ratio is clipped to [1 - clip_low, 1 + clip_high]."""

    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.2, ge=0)


class Part(NamedTuple):
    """What a driver function returns: its value; [B] or [B,S] tensors that the worker half reads;
    metrics; and tensors that nobody in a worker reads, which stay at the driver."""

    value: Any
    signals: Mapping[str, Tensor] = {}
    metrics: Mapping[str, float] = {}
    reports: Mapping[str, Tensor] = {}


def group_advantages(rollouts: Rollouts, params: Params) -> Part:
    """A_i = (R_i - mean) / (std + 1e-6) over the sequence's group, [B]."""
    from nemo_algos.core import groups

    return Part(groups.advantages(rollouts.rewards, rollouts.groups, params.advantage_std))


def no_bounds(rollouts: Rollouts, params: Params) -> Part:
    """The ratio is not clipped."""
    return Part((float("inf"), float("inf")))


def clip_bounds(rollouts: Rollouts, params: ClipParams) -> Part:
    """[1 - clip_low, 1 + clip_high] for every token."""
    return Part((params.clip_low, params.clip_high))


def no_constants(rollouts: Rollouts, params: Params) -> Part:
    """Nothing beyond advantages and bounds."""
    return Part(None)


def token_log_ratio(log_ratio: Tensor, columns: Columns, params: Params) -> Tensor:
    """log_ratio' = l_t, each token its own ratio, [B,S]."""
    return log_ratio


def keep_advantages(log_ratio: Tensor, columns: Columns, params: Params) -> Tensor:
    """A' = A."""
    return columns.advantages


@dataclass(frozen=True)
class Method:
    """One method: the surrogate's inputs as functions, and what the engines must know about it.

    advantages(rollouts, params)    -> Part of [B] or [B,S]
    bounds(rollouts, params)        -> Part of (low, high)
    constants(rollouts, params)     -> Part whose signals reweight needs
    log_ratio(l, columns, params)   -> [B,S] or [B,1]
    reweight(log_ratio', columns, params) -> A'

    form    ratio: min(r' A', clip(r') A');  logprob: A' log pi (score function)
    mean    of J and KL, where the parameters have no `aggregation` to choose it
    clips   where the bounds act: ratio (the surrogate's), token (inside log_ratio), weight (inside
            reweight), or None
    """

    name: str
    paper: str
    params: type[Params]
    advantages: Callable[[Rollouts, Any], Part] = group_advantages
    bounds: Callable[[Rollouts, Any], Part] = clip_bounds
    constants: Callable[[Rollouts, Any], Part] = no_constants
    log_ratio: Callable[[Tensor, Columns, Any], Tensor] = token_log_ratio
    reweight: Callable[[Tensor, Columns, Any], Tensor] = keep_advantages
    form: Literal["ratio", "logprob"] = "ratio"
    clips: Literal["ratio", "token", "weight"] | None = "ratio"
    ratio: Literal["token", "sequence"] = "token"
    mean: Literal["sequence", "token"] = "sequence"
    token_advantages: bool = False  # advantages are [B,S]
    flat_group_is_inert: bool = (
        True  # a group with equal rewards adds nothing to the gradient (KL apart)
    )
    needs: frozenset[Need] = field(default_factory=frozenset)

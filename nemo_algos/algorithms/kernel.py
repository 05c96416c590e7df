"""What all methods share: a record of functions, two halves, one surrogate.

    J = mean( min(r' A', clip(r', 1 - low, 1 + high) A') )      or      mean( A' log pi )

driver half   once per rollout batch, sees whole groups:     advantages, bounds, extras
worker half   once per micro-batch, sees only its sequences: log_ratio, reweight

B sequences, S positions. A value per sequence is [B,1], a value per token [B,S]; they broadcast.
torch is not loaded before a function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_algos.algorithms import core, record
from nemo_algos.algorithms.record import ClipParams, Params, Slot

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken

INFINITE = (float("inf"), float("inf"))
Memory = Mapping[str, Any]  # what JSON holds: numbers, texts, lists and dictionaries by text


class DriverOutput(NamedTuple):
    """What a function of the driver half returns.

    value: advantages or an extra, [B] or (named in Method.per_token) [B,S]; for bounds, (low,
    high), numbers or such tensors. metrics: numbers for the log. reports: [B] or [B,S] for the
    driver, which no worker reads. memory: what the function is given with the next batch.
    """

    value: Any
    metrics: Mapping[str, float] = {}
    reports: Mapping[str, Tensor] = {}
    memory: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Signals:
    """The driver half's result for a rollout batch: constants of the loss, [B,1] or [B,S].

    low, high: the clip range [1 - low, 1 + high], plain numbers where no batch changes them.
    extras: inputs of the method and its extensions, by name. metrics, reports, memory: those of all
    `DriverOutput`s. mark [B,1]: `Rollouts.marks` of the rows that these are of, None: unknown.
    """

    advantages: Tensor
    low: Tensor | float
    high: Tensor | float
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    mark: Tensor | None = None

    def __getitem__(self, rows: Tensor | slice) -> Signals:
        return self.map(lambda x: x[rows])

    def to(self, *args: Any) -> Signals:
        """Tensor.to for every tensor."""
        return self.map(lambda x: x.to(*args))

    def map(self, f: Callable[[Tensor], Tensor]) -> Signals:
        """The signals with every tensor changed by f."""
        return replace(
            self,
            advantages=f(self.advantages),
            low=self.low if isinstance(self.low, (int, float)) else f(self.low),
            high=self.high if isinstance(self.high, (int, float)) else f(self.high),
            extras={name: f(value) for name, value in self.extras.items()},
            reports={name: f(value) for name, value in self.reports.items()},
            mark=None if self.mark is None else f(self.mark),
        )


class Shaped(NamedTuple):
    """The surrogate's inputs in a worker: log r' and A', [B,S] or [B,1], and the clip range.

    clip_log_ratio: the log-ratio that the clip bounds are compared with. clip_sign: its sign says
    which bound acts; it is A' itself, or A where reweight sets A' to 0 beyond a bound.
    """

    log_ratio: PerToken
    advantages: Tensor
    clip_log_ratio: Tensor
    low: Tensor | float
    high: Tensor | float
    clip_sign: Tensor


def group_advantages(rollouts: Rollouts, params: Params) -> DriverOutput:
    """A_i = (R_i - mean) / (std + 1e-6) over the sequence's group, [B]."""
    groups = rollouts.groups
    return DriverOutput(core.groups.advantages(rollouts.rewards, groups, params.advantage_std))


def no_bounds(params: Params) -> tuple[float, float]:
    """The ratio is not clipped."""
    return INFINITE


def clip_bounds(params: ClipParams) -> tuple[float, float]:
    """[1 - clip_low, 1 + clip_high] for every token."""
    return params.clip_low, params.clip_high


def token_log_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: Params) -> Tensor:
    """Each token its own ratio, log r' = l_t, [B,S]."""
    return log_ratio


def keep_advantages(log_ratio: PerToken, mask: Mask, signals: Signals, params: Params) -> Tensor:
    """A' = A."""
    return signals.advantages


@dataclass(frozen=True)
class Method:
    """One method: the surrogate's inputs as functions, and what the engines must know about it.

    advantages(rollouts, params)    -> DriverOutput of [B]
    bounds(rollouts, params)        -> DriverOutput of (low, high), where they depend on the batch
    constant_bounds(params)         -> (low, high), numbers, where they do not (bounds is None)
    extras: name -> function(rollouts, params) -> DriverOutput of [B], for the worker half
    log_ratio(l, mask, signals, params)           -> log r', [B,S] or [B,1]
    reweight(log r', mask, signals, params)       -> A'

    per_token  of advantages, bounds and extras, those that are [B,S]
    form       ratio: min(r' A', clip(r') A');  logprob: A' log pi (score function)
    clips      where the bounds act: ratio (the surrogate's), token (inside log_ratio), weight
               (inside reweight), or None
    ratio      r' is each token's own, or one of its turn or of the sequence
    mean       of J and KL, where the parameters have no `aggregation` to choose it

    and facts, which are said at their fields. Raises ValueError for a value that is none of these.
    """

    name: str
    paper: str
    params: type[Params]
    advantages: Callable[..., DriverOutput] = group_advantages
    bounds: Callable[[Rollouts, Any], DriverOutput] | None = None
    constant_bounds: Callable[[Any], tuple[float, float]] = clip_bounds
    extras: Mapping[str, Callable[[Rollouts, Any], DriverOutput]] = field(default_factory=dict)
    log_ratio: Callable[[Tensor, Tensor, Signals, Any], Tensor] = token_log_ratio
    reweight: Callable[[Tensor, Tensor, Signals, Any], Tensor] = keep_advantages
    per_token: frozenset[str] = frozenset()
    form: record.Form = "ratio"
    clips: record.Clips | None = "ratio"
    ratio: record.Ratio = "token"
    mean: record.Per = "sequence"
    needs: frozenset[record.Need] = frozenset()  # of rollouts, engine and partners
    own: frozenset[Slot] | None = None  # what makes it what it is, where functions do not tell
    success: frozenset[Slot] = frozenset()  # whose functions read a reward above 0 as a success
    flat_group_is_inert: bool = True  # equal rewards add nothing to the gradient (KL apart)
    whole_batch: bool = False  # its signals are statistics of the batch: a part has others
    own_denominator: bool = False  # r' is not 1 even where pi_theta is pi_old
    stock: bool = False  # NeMo-RL's own loss computes it, and does so untouched
    usual_group: int = 2  # with fewer responses its statistics of a group say little

    def __post_init__(self) -> None:
        record.check(self)


class Component(NamedTuple):
    """A method with its parameters, which are of the class `method.params`."""

    method: Method
    params: Any

    @property
    def flat_group_is_inert(self) -> bool:
        """Whether the record or these parameters say so."""
        return self.method.flat_group_is_inert or self.params.flat_group_is_inert

    @property
    def form(self) -> record.Form:
        """The record's form; logprob where these parameters ask for it."""
        if self.params.score_form:
            return "logprob"
        return self.method.form


@dataclass(frozen=True)
class Kernel:
    """A base method, and the methods that give advantages and bounds (usually the base itself)."""

    base: Component
    advantages: Component
    bounds: Component

    @property
    def mean(self) -> Any:
        """The mean of J and of the KL penalty: sequence or token."""
        return getattr(self.base.params, "aggregation", self.base.method.mean)

    @property
    def constant_bounds(self) -> tuple[float, float] | None:
        """(low, high) where they are the same in every batch, else None."""
        method, params = self.bounds
        if method.bounds:
            return None
        return method.constant_bounds(params)

    @property
    def one_advantage(self) -> bool:
        """Whether all tokens of a response must have the same advantage."""
        method = self.base.method
        return method.ratio == "sequence" or "sequence_advantages" in method.needs

    @property
    def per_token(self) -> dict[str, bool]:
        """The tensors of `signals` by name (low and high but for constant ones): whether [B,S]."""
        bounds = () if self.constant_bounds else ("low", "high")
        return {
            "advantages": "advantages" in self.advantages.method.per_token,
            **dict.fromkeys(bounds, "bounds" in self.bounds.method.per_token),
            **{k: k in self.base.method.per_token for k in self.base.method.extras},
        }

    def compute_signals(self, rollouts: Rollouts, memory: Memory) -> dict[str, DriverOutput]:
        """What the functions of the driver half return, by the name of the signal."""
        method, params = self.advantages
        past = [memory.get("advantages", {})] if "memory" in method.needs else []
        outputs = {"advantages": method.advantages(rollouts, params, *past)}
        if self.bounds.method.bounds:
            outputs["bounds"] = self.bounds.method.bounds(rollouts, self.bounds.params)
        for name, extra in self.base.method.extras.items():
            outputs[name] = extra(rollouts, self.base.params)
        record.check_signals(self, outputs, DriverOutput)
        return outputs

    def to_columns(self, outputs: Mapping[str, DriverOutput], rollouts: Rollouts) -> Signals:
        """The signals of a batch, each value as a column [B,1] or [B,S]."""
        values = {name: output.value for name, output in outputs.items()}
        values |= zip(("low", "high"), values.pop("bounds", ()), strict=False)
        columns = {}
        for name, value in values.items():
            columns[name] = self._column(name, value, rollouts)
        low, high = self.constant_bounds or (columns.pop("low"), columns.pop("high"))
        metrics = dict[str, float]()
        reports = dict[str, "Tensor"]()
        for output in outputs.values():
            metrics |= output.metrics
            reports |= output.reports
        return Signals(
            advantages=columns.pop("advantages"),
            low=low,
            high=high,
            extras=columns,
            metrics=metrics,
            reports=reports,
            memory={name: output.memory for name, output in outputs.items() if output.memory},
            mark=rollouts.marks,
        )

    def _column(self, name: str, value: Tensor | float, rollouts: Rollouts) -> Tensor:
        shape = rollouts.mask.shape if self.per_token[name] else rollouts.mask.shape[:1]
        if isinstance(value, (int, float)):
            value = rollouts.rewards.new_tensor(value).expand(shape)
        record.check_shape(self, name, value, shape, rollouts.mask)
        if self.per_token[name]:
            return value
        return value[:, None]

    def transform(self, log_ratio: PerToken, mask: Mask, signals: Signals) -> Shaped:
        """The worker half: log r' and A' from the token log-ratio l [B,S], in its dtype.

        l is clamped, and 0 off the mask. Nothing but l and the signals of these rows is used, so
        micro-batches and ranks may cut between sequences.
        """
        method = self.base.method
        signals = signals.to(mask.device, log_ratio.dtype)
        shaped = self._selected("log_ratio", log_ratio, mask, signals)
        advantages = self._selected("reweight", shaped.detach(), mask, signals)
        return Shaped(
            log_ratio=shaped,
            advantages=advantages,
            clip_log_ratio=log_ratio if method.clips == "token" else shaped,
            low=signals.low,
            high=signals.high,
            clip_sign=signals.advantages if method.clips == "weight" else advantages,
        )

    def _selected(self, name: str, log_ratio: PerToken, mask: Mask, signals: Signals) -> Tensor:
        """The result of a function of the worker half, with 0 off the mask, where it may be NaN."""
        method, params = self.base
        value = getattr(method, name)(log_ratio, mask, signals, params)
        if value is log_ratio or value is signals.advantages:
            return value
        record.check_shaped(method, name, value, mask)
        used = mask if value.shape == mask.shape else mask.any(1, keepdim=True)
        return value.where(used, 0.0)

    def ratio_bounds(self, shaped: Shaped) -> tuple[Tensor | float, Tensor | float]:
        """The surrogate's own clip range; infinite where the method clips elsewhere."""
        if self.base.method.clips == "ratio":
            return (shaped.low, shaped.high)
        return INFINITE

    def surrogate(self, shaped: Shaped, logprobs: PerToken, mask: Mask) -> Tensor:
        """The terms whose mean is J, per token [B,S] or per sequence [B,1]."""
        if self.base.form == "logprob":
            dtype = core.surrogate.working_dtype(logprobs)
            return logprobs.to(dtype).where(mask, 0.0) * shaped.advantages
        low, high = self.ratio_bounds(shaped)
        return core.surrogate.clipped_surrogate(
            shaped.log_ratio,
            shaped.advantages,
            low,
            high=high,
            dual_clip=self.base.params.dual_clip,
        )

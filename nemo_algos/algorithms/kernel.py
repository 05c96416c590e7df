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

INFINITE = (float("inf"), float("inf"))
Memory = Mapping[str, Any]  # what JSON holds: numbers, texts, lists and dictionaries by text


class Signal(NamedTuple):
    """What a function of the driver half returns.

    value: advantages or an extra, [B] or (named in Method.per_token) [B,S]; of bounds, (low, high),
    numbers or such tensors. metrics: numbers. reports: [B] or [B,S], read by nobody in a worker.
    memory: what the function is given with the next batch.
    """

    value: Any
    metrics: Mapping[str, float] = {}
    reports: Mapping[str, Tensor] = {}
    memory: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Signals:
    """The driver half's result for a rollout batch: constants of the loss, [B,1] or [B,S].

    low, high: clip to [1 - low, 1 + high], plain numbers where no batch changes them; extras: the
    method's own and its riders', by name; metrics, reports, memory: of all `Signal`s.
    """

    advantages: Tensor
    low: Tensor | float
    high: Tensor | float
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)

    def __getitem__(self, rows: Tensor | slice) -> Signals:
        return self._map(lambda x: x[rows])

    def to(self, *args: Any) -> Signals:
        """As Tensor.to, for every tensor."""
        return self._map(lambda x: x.to(*args))

    def _map(self, f: Callable[[Tensor], Tensor]) -> Signals:
        low, high = (b if isinstance(b, (int, float)) else f(b) for b in (self.low, self.high))
        extras, reports = ({k: f(v) for k, v in x.items()} for x in (self.extras, self.reports))
        tensors = {"advantages": f(self.advantages), "extras": extras, "reports": reports}
        return replace(self, low=low, high=high, **tensors)


class Shaped(NamedTuple):
    """The surrogate's log r' and A', [B,S] or [B,1], and the log-ratio that low and high judge.

    side: its sign tells which bound cuts; A' itself, or A where reweight cuts it to 0.
    """

    log_ratio: Tensor
    advantages: Tensor
    judged: Tensor
    low: Tensor | float
    high: Tensor | float
    side: Tensor


def group_advantages(rollouts: Rollouts, params: Params) -> Signal:
    """A_i = (R_i - mean) / (std + 1e-6) over the sequence's group, [B]."""
    groups = rollouts.groups
    return Signal(core.groups.advantages(rollouts.rewards, groups, params.advantage_std))


def no_bounds(params: Params) -> tuple[float, float]:
    """The ratio is not clipped."""
    return INFINITE


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

    advantages(rollouts, params)    -> Signal of [B]
    bounds(rollouts, params)        -> Signal of (low, high), where they depend on the batch
    constant_bounds(params)         -> (low, high), numbers, where they do not (bounds is None)
    extras: name -> function(rollouts, params) -> Signal of [B], for the worker half
    log_ratio(l, mask, signals, params)           -> log r', [B,S] or [B,1]
    reweight(log r', mask, signals, params)       -> A'

    per_token  of advantages, bounds and extras, those that are [B,S]
    form       ratio: min(r' A', clip(r') A');  logprob: A' log pi (score function)
    clips      where the bounds act: ratio (the surrogate's), token (inside log_ratio), weight
               (inside reweight), or None
    ratio      r' is each token's own, or one of the sequence
    mean       of J and KL, where the parameters have no `aggregation` to choose it

    and facts, which are said at their fields. Raises ValueError for a value that is none of these.
    """

    name: str
    paper: str
    params: type[Params]
    advantages: Callable[..., Signal] = group_advantages
    bounds: Callable[[Rollouts, Any], Signal] | None = None
    constant_bounds: Callable[[Any], tuple[float, float]] = clip_bounds
    extras: Mapping[str, Callable[[Rollouts, Any], Signal]] = field(default_factory=dict)
    log_ratio: Callable[[Tensor, Tensor, Signals, Any], Tensor] = token_log_ratio
    reweight: Callable[[Tensor, Tensor, Signals, Any], Tensor] = keep_advantages
    per_token: frozenset[str] = frozenset()
    form: record.Form = "ratio"
    clips: record.Clips | None = "ratio"
    ratio: record.Per = "token"
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
        """By the record, or with these parameters."""
        return self.method.flat_group_is_inert or self.params.flat_group_is_inert

    @property
    def form(self) -> record.Form:
        """By the record, or with these parameters."""
        return "logprob" if self.params.score_form else self.method.form


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
        return None if method.bounds else method.constant_bounds(params)

    @property
    def per_token(self) -> dict[str, bool]:
        """The tensors of `signals` by name (low and high but for constant ones): whether [B,S]."""
        bounds = () if self.constant_bounds else ("low", "high")
        return {
            "advantages": "advantages" in self.advantages.method.per_token,
            **dict.fromkeys(bounds, "bounds" in self.bounds.method.per_token),
            **{k: k in self.base.method.per_token for k in self.base.method.extras},
        }

    def drive(self, rollouts: Rollouts, memory: Memory) -> dict[str, Signal]:
        """What the driver's functions return, by the signal that each gives."""
        (method, params), (own, own_params), bounds = self.advantages, self.base, self.bounds
        past = [memory.get("advantages", {})] if "memory" in method.needs else []
        found = {"advantages": method.advantages(rollouts, params, *past)}
        if bounds.method.bounds:
            found["bounds"] = bounds.method.bounds(rollouts, bounds.params)
        found |= {k: extra(rollouts, own_params) for k, extra in own.extras.items()}
        record.check_signals(self, found, Signal)
        return found

    def join(self, found: Mapping[str, Signal], rollouts: Rollouts) -> Signals:
        """The signals of a batch, each value as a column [B,1] or [B,S]."""
        values = {k: signal.value for k, signal in found.items()}
        values |= zip(("low", "high"), values.pop("bounds", ()), strict=False)
        columns = {k: self._column(k, v, rollouts) for k, v in values.items()}
        low, high = self.constant_bounds or (columns.pop("low"), columns.pop("high"))
        metrics = {k: v for signal in found.values() for k, v in signal.metrics.items()}
        reports = {k: v for signal in found.values() for k, v in signal.reports.items()}
        memory = {k: signal.memory for k, signal in found.items() if signal.memory}
        return Signals(columns.pop("advantages"), low, high, columns, metrics, reports, memory)

    def _column(self, name: str, value: Tensor | float, rollouts: Rollouts) -> Tensor:
        shape = rollouts.mask.shape if self.per_token[name] else rollouts.mask.shape[:1]
        if isinstance(value, (int, float)):
            value = rollouts.rewards.new_tensor(value).expand(shape)
        record.check_shape(self, name, value, shape, rollouts.mask)
        return value if self.per_token[name] else value[:, None]

    def shape(self, log_ratio: Tensor, mask: Tensor, signals: Signals) -> Shaped:
        """The worker half: from the token log-ratio l [B,S], clamped, 0 off the mask, in its dtype.

        Uses nothing but l and the signals of these rows, so micro-batches and ranks may cut between
        sequences.
        """
        method = self.base.method
        signals = signals.to(mask.device, log_ratio.dtype)
        shaped = self._selected("log_ratio", log_ratio, mask, signals)
        advantages = self._selected("reweight", shaped.detach(), mask, signals)
        judged = log_ratio if method.clips == "token" else shaped
        side = signals.advantages if method.clips == "weight" else advantages
        return Shaped(shaped, advantages, judged, signals.low, signals.high, side)

    def _selected(self, name: str, log_ratio: Tensor, mask: Tensor, signals: Signals) -> Tensor:
        """What a function of the worker half gives, 0 off the mask: it may be NaN there."""
        method, params = self.base
        value = getattr(method, name)(log_ratio, mask, signals, params)
        if value is log_ratio or value is signals.advantages:
            return value
        record.check_shaped(method, name, value, mask)
        used = mask if value.shape == mask.shape else mask.any(1, keepdim=True)
        return value.where(used, 0.0)

    def ratio_bounds(self, shaped: Shaped) -> tuple[Tensor | float, Tensor | float]:
        """The low and high of the surrogate itself: infinite where the method clips elsewhere."""
        return (shaped.low, shaped.high) if self.base.method.clips == "ratio" else INFINITE

    def surrogate(self, shaped: Shaped, logprobs: Tensor, mask: Tensor) -> Tensor:
        """What J is the mean of, per token [B,S] or per sequence [B,1]."""
        if self.base.form == "logprob":
            dtype = core.surrogate.working_dtype(logprobs)
            return logprobs.to(dtype).where(mask, 0.0) * shaped.advantages
        cuts = *self.ratio_bounds(shaped), self.base.params.dual_clip
        return core.surrogate.clipped_surrogate(shaped.log_ratio, shaped.advantages, *cuts)

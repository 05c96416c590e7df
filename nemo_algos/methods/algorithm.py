"""A method, or a combination of parts, ready to use. Both engines call `signals` (driver) and
`shape` (worker)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_algos import core
from nemo_algos.methods.method import Method, Need, Params

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from nemo_algos.rollouts import Rollouts


class Columns(NamedTuple):
    """What the worker functions see: [B,1] or [B,S] tensors that broadcast (bounds: or numbers);
    mask [B,S] bool."""

    advantages: Tensor
    low: Tensor | float
    high: Tensor | float
    mask: Tensor
    signals: Mapping[str, Tensor]


@dataclass(frozen=True)
class Signals:
    """The driver half's result for a rollout batch: constants of the loss, [B] or [B,S]; metrics
    are plain numbers. reports: the names of those extras that the worker half does not read."""

    advantages: Tensor
    low: Tensor | float
    high: Tensor | float
    extras: Mapping[str, Tensor]
    metrics: Mapping[str, float]
    reports: frozenset[str] = frozenset()

    def __getitem__(self, rows: Tensor | slice) -> Signals:
        """The signals of these rows."""
        return self._map(lambda x: x[rows])

    def to(self, *args: Any) -> Signals:
        """As Tensor.to, for every tensor."""
        return self._map(lambda x: x.to(*args))

    def read(self) -> dict[str, Tensor]:
        """The extras that the worker half reads."""
        return {k: v for k, v in self.extras.items() if k not in self.reports}

    def _map(self, f: Callable[[Tensor], Tensor]) -> Signals:
        low, high = (b if isinstance(b, (int, float)) else f(b) for b in (self.low, self.high))
        extras = {k: f(v) for k, v in self.extras.items()}
        return replace(self, advantages=f(self.advantages), low=low, high=high, extras=extras)

    def columns(self, mask: Tensor, dtype: torch.dtype) -> Columns:
        """What the worker half reads: [B] as [B,1], in the loss's dtype and on its device."""

        def column(x: Tensor) -> Tensor:
            return (x[:, None] if x.dim() == 1 else x).to(mask.device, dtype)

        low, high = (b if isinstance(b, (int, float)) else column(b) for b in (self.low, self.high))
        extras = {k: column(v) for k, v in self.read().items()}
        return Columns(column(self.advantages), *_both(low, high), mask, extras)


class Shaped(NamedTuple):
    """The surrogate's inputs: log_ratio' and A' ([B,S] or [B,1]), bounds; clip_log_ratio is what
    the bounds judge."""

    log_ratio: Tensor
    advantages: Tensor
    low: Tensor | float
    high: Tensor | float
    clip_log_ratio: Tensor


@dataclass(frozen=True)
class Algorithm:
    """A base method, and the methods that give the advantages and the bounds (usually itself), each
    with parameters."""

    base: Method
    params: Params
    advantages: Method
    advantages_params: Params
    bounds: Method
    bounds_params: Params

    @property
    def name(self) -> str:
        """etr, or erpo+etr for ERPO's advantages within ETR's bounds."""
        return "+".join(dict.fromkeys([self.advantages.name, self.base.name, self.bounds.name]))

    @property
    def mean(self) -> Any:
        """sequence | token, of J and of the KL penalty."""
        return getattr(self.params, "aggregation", self.base.mean)

    @property
    def needs(self) -> frozenset[Need]:
        """ref_logprobs and entropy are inputs of advantages; unit_rewards of bounds and
        constants."""
        token_inputs = self.advantages.needs & {"ref_logprobs", "entropy"}
        return token_inputs | ((self.base.needs | self.bounds.needs) & {"unit_rewards"})

    def signals(self, rollouts: Rollouts) -> Signals:
        """The driver half, once per rollout batch over all its groups.

        Raises ValueError when an input that the method needs is missing or out of range.
        """
        self._check(rollouts)
        advantages = self.advantages.advantages(rollouts, self.advantages_params)
        bounds = self.bounds.bounds(rollouts, self.bounds_params)
        constants = self.base.constants(rollouts, self.params)
        parts = (advantages, bounds, constants)
        extras = {k: v for part in parts for k, v in part.signals.items()}
        reports = {k: v for part in parts for k, v in part.reports.items() if k not in extras}
        metrics = {k: v for part in parts for k, v in part.metrics.items()}
        if rollouts.sample_mask is not None:
            metrics["rollouts/masked_share"] = float((~rollouts.kept).double().mean())
        low, high = bounds.value
        return Signals(advantages.value, low, high, extras | reports, metrics, frozenset(reports))

    def _check(self, rollouts: Rollouts) -> None:
        for need in {"ref_logprobs", "entropy"} & self.needs:
            value = getattr(rollouts, need)
            if value is None:
                raise ValueError(
                    f"{self.name} needs {need} [B, S]: compute them for the rollout batch"
                )
            if not core.surrogate.all_finite(value + rollouts.old_logprobs, rollouts.mask):
                raise ValueError(
                    f"{self.name} spreads every token's {need} over its group, and one on a "
                    f"response "
                    "token is not finite: look for the NaN in the model's forward pass"
                )
        outside = (rollouts.rewards < 0) | (rollouts.rewards > 1)
        if "unit_rewards" in self.needs and outside.any():
            row = int(outside.nonzero()[0])
            raise ValueError(
                f"{self.name} needs rewards in [0, 1], but sequence {row} has "
                f"{float(rollouts.rewards[row]):g}: "
                "map them, e.g. (R + 1) / 2 for rewards of +-1"
            )

    def shape(self, log_ratio: Tensor, mask: Tensor, signals: Signals) -> Shaped:
        """The worker half: the surrogate's inputs from the token log-ratio l [B,S] (clamped, 0 off
        the mask).

        Uses nothing but l and the signals of these rows, so micro-batches and ranks may cut between
        sequences.
        """
        columns = signals.columns(mask, log_ratio.dtype)
        shaped = self.base.log_ratio(log_ratio, columns, self.params)
        advantages = self.base.reweight(shaped.detach(), columns, self.params)
        clipped = log_ratio if self.base.clips == "token" else shaped
        if self.base.clips == "ratio":
            return Shaped(shaped, advantages, columns.low, columns.high, clipped)
        return Shaped(shaped, advantages, float("inf"), float("inf"), clipped)

    def inert_rows(self, signals: Signals) -> Tensor:
        """bool [B]: sequences that add nothing to the gradient of J (KL apart), because their
        advantage is 0."""
        zero = signals.advantages == 0
        zero = zero.all(1) if zero.dim() == 2 else zero
        return zero if self.base.flat_group_is_inert else zero.new_zeros(zero.shape)


def _both(low: Tensor | float, high: Tensor | float) -> tuple[Tensor | float, Tensor | float]:
    """Both numbers, or both tensors: torch's clamp takes no mixture."""
    if isinstance(high, (int, float)) and not isinstance(low, (int, float)):
        return low, low.new_full(low.shape, high)
    if isinstance(low, (int, float)) and not isinstance(high, (int, float)):
        return high.new_full(high.shape, low), high
    return low, high

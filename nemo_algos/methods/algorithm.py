"""A method, or a combination, ready to use: `signals` (driver half) and `shape` (worker half)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_algos import core
from nemo_algos.methods.method import Method, Need, group_advantages
from nemo_algos.methods.signals import Shaped, Signals

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.rollouts import Rollouts

NOTHING = frozenset[Need]()
TOKEN_INPUTS = frozenset[Need](("ref_logprobs", "entropy", "gen_logprobs"))


class Component(NamedTuple):
    """A method with its parameters, which are of the class `method.params`."""

    method: Method
    params: Any


@dataclass(frozen=True)
class Algorithm:
    """A base method, and the methods that give advantages and bounds (usually the base itself)."""

    base: Component
    advantages: Component
    bounds: Component

    @property
    def name(self) -> str:
        """The method's name, or erpo+etr for ERPO's advantages within ETR's bounds."""
        components = (self.advantages, self.base, self.bounds)
        return "+".join(dict.fromkeys(c.method.name for c in components))

    @property
    def mean(self) -> Any:
        """The mean of J and of the KL penalty: sequence or token."""
        return getattr(self.base.params, "aggregation", self.base.method.mean)

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that its advantages and the base's extras read; unit_rewards of its bounds too."""
        base, advantages, bounds = (c.method for c in (self.base, self.advantages, self.bounds))
        own = advantages.advantages is not group_advantages
        inputs = (advantages.needs if own else NOTHING) | (base.needs if base.extras else NOTHING)
        return inputs & TOKEN_INPUTS | (inputs | base.needs | bounds.needs) & {"unit_rewards"}

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

    def signals(self, rollouts: Rollouts) -> Signals:
        """The driver half, once per rollout batch over all its groups.

        Raises ValueError when an input that the method needs is missing or out of range, or when
        a method's function returns a shape that its record does not declare.
        """
        self._check(rollouts)
        terms = [self.advantages.method.advantages(rollouts, self.advantages.params)]
        values = {"advantages": terms[0].value}
        if self.bounds.method.bounds:
            terms.append(self.bounds.method.bounds(rollouts, self.bounds.params))
            values |= zip(("low", "high"), terms[-1].value, strict=True)
        for name, extra in self.base.method.extras.items():
            terms.append(extra(rollouts, self.base.params))
            values[name] = terms[-1].value
        columns = {k: self._column(k, v, rollouts) for k, v in values.items()}
        metrics = {k: v for term in terms for k, v in term.metrics.items()}
        if rollouts.sample_mask is not None:
            metrics["rollouts/masked_share"] = float((~rollouts.kept).double().mean())
        low, high = self.constant_bounds or (columns.pop("low"), columns.pop("high"))
        reports = {k: v for term in terms for k, v in term.reports.items()}
        return Signals(columns.pop("advantages"), low, high, columns, metrics, reports)

    def _column(self, name: str, value: Tensor | float, rollouts: Rollouts) -> Tensor:
        """[B,1], or [B,S] where the method says so."""
        shape = rollouts.mask.shape if self.per_token[name] else rollouts.mask.shape[:1]
        if isinstance(value, (int, float)):
            value = rollouts.rewards.new_tensor(value).expand(shape)
        if value.shape != shape:
            raise ValueError(
                f"{name} of {self.name} has shape {list(value.shape)}, and its record says "
                f"{list(shape)}: name in Method.per_token what is [B, S]"
            )
        return value if self.per_token[name] else value[:, None]

    def _check(self, rollouts: Rollouts) -> None:
        for need in TOKEN_INPUTS & self.needs:
            value = getattr(rollouts, need)
            if value is None:
                needed = f"{self.name} needs {need} [B, S]"
                raise ValueError(f"{needed}: compute them for the rollout batch")
            if not core.surrogate.all_finite(value + rollouts.old_logprobs, rollouts.mask):
                raise ValueError(
                    f"{self.name} spreads every token's {need} over its group, and one on a "
                    "response token is not finite: look for the NaN in the model's forward pass"
                )
        outside = (rollouts.rewards < 0) | (rollouts.rewards > 1)
        if "unit_rewards" in self.needs and outside.any():
            row = int(outside.nonzero()[0])
            raise ValueError(
                f"{self.name} needs rewards in [0, 1], but sequence {row} has "
                f"{float(rollouts.rewards[row]):g}: map them, e.g. (R + 1) / 2 for rewards of +-1"
            )

    def shape(self, log_ratio: Tensor, mask: Tensor, signals: Signals) -> Shaped:
        """The worker half: from the token log-ratio l [B,S], clamped, 0 off the mask, in its dtype.

        Uses nothing but l and the signals of these rows, so micro-batches and ranks may cut between
        sequences.
        """
        method, params = self.base
        signals = signals.to(mask.device, log_ratio.dtype)
        shaped = method.log_ratio(log_ratio, mask, signals, params)
        advantages = method.reweight(shaped.detach(), mask, signals, params)
        judged = log_ratio if method.clips == "token" else shaped
        side = signals.advantages if method.clips == "weight" else advantages
        return Shaped(shaped, advantages, judged, signals.low, signals.high, side)

    def ratio_bounds(self, shaped: Shaped) -> tuple[Tensor | float, Tensor | float]:
        """The low and high of the surrogate itself: infinite where the method clips elsewhere."""
        infinite = (float("inf"), float("inf"))
        return (shaped.low, shaped.high) if self.base.method.clips == "ratio" else infinite

    def inert_rows(self, signals: Signals) -> Tensor:
        """bool [B]: sequences that add nothing to J's gradient because their advantage is 0."""
        zero = (signals.advantages == 0).all(1)
        return zero if self.base.method.flat_group_is_inert else zero.new_zeros(zero.shape)

"""A method, or a combination, ready to use: `signals` (driver half) and `shape` (worker half)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_algos.algorithms import core
from nemo_algos.algorithms.method import Method, Need, group_advantages
from nemo_algos.algorithms.riders import off_policy
from nemo_algos.algorithms.riders.correction import CorrectionConfig
from nemo_algos.algorithms.riders.terms import Added
from nemo_algos.algorithms.signals import Memory, Shaped, Signals, Term

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts

NOTHING = frozenset[Need]()
TOKEN_INPUTS = frozenset[Need](("ref_logprobs", "entropy", "gen_logprobs"))
UNIT = frozenset[Need](("unit_rewards",))
OF_PARTNERS = frozenset[Need](("sequence_advantages", "sequence_mean"))


PER_SEQUENCE = {
    "reward_parts": "name the parts of the reward, each [B]",
    "prompt": "give each sequence its prompt's own number [B], e.g. `prompt_key` of its tokens",
    "drift": "measure how far the policy has moved since the batch before, [B]",
}


class Component(NamedTuple):
    """A method with its parameters, which are of the class `method.params`."""

    method: Method
    params: Any

    @property
    def of_rest(self) -> frozenset[Need]:
        """What its bounds and extras need."""
        inputs = TOKEN_INPUTS if self.method.extras else NOTHING
        more = self.method.bounds or self.method.extras
        return self.method.needs & (inputs | UNIT) if more else NOTHING

    @property
    def of_advantages(self) -> frozenset[Need]:
        """What its advantages need."""
        own = self.method.advantages is not group_advantages
        return (self.method.needs - OF_PARTNERS if own else NOTHING) | self.params.needs


@dataclass(frozen=True)
class Algorithm:
    """A base method, and the methods that give advantages and bounds (usually the base itself).

    terms: what the loss has beside the surrogate; correction: for another policy's samples.
    """

    base: Component
    advantages: Component
    bounds: Component
    terms: tuple[Added, ...] = ()
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)

    @property
    def name(self) -> str:
        """The method's name, or erpo+etr+nll for ERPO's advantages, ETR's bounds, an NLL term."""
        components = (self.advantages, self.base, self.bounds)
        names = [c.method.name for c in components] + [added.term.name for added in self.terms]
        return "+".join(dict.fromkeys(names))

    @property
    def mean(self) -> Any:
        """The mean of J and of the KL penalty: sequence or token."""
        return getattr(self.base.params, "aggregation", self.base.method.mean)

    @property
    def needs(self) -> frozenset[Need]:
        """Of each component what its part of the method needs, of the terms, of the correction."""
        needed = self.advantages.of_advantages | self.base.of_rest | self.bounds.of_rest
        parts: frozenset[Need] = frozenset({"reward_parts"} if self.columns else ())
        sampled: frozenset[Need] = frozenset({"gen_logprobs"} if self.correction.active else ())
        return needed.union(parts, sampled, *(added.term.needs for added in self.terms))

    @property
    def columns(self) -> dict[str, str]:
        """The reward parts that are read by name: the key that names it -> the part."""
        parts = {"method.bounds": self.bounds.params, "method": self.base.params}
        parts |= {f"method.terms.{added.term.name}": added.params for added in self.terms}
        named = {f"{k}.pass_rate": getattr(p, "pass_rate", None) for k, p in parts.items()}
        if self.bounds is self.base:
            del named["method.bounds.pass_rate"]
        return {key: name for key, name in named.items() if name is not None}

    @property
    def unit_columns(self) -> set[str | None]:
        """What must be in [0, 1]: parts of the reward by name, None for the whole."""
        needing = [c.params for c in (self.base, self.bounds) if "unit_rewards" in c.of_rest]
        if "unit_rewards" in self.advantages.of_advantages:
            needing.append(self.advantages.params)
        return {getattr(params, "pass_rate", None) for params in needing}

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
            **dict.fromkeys((added.key for added in self.terms), False),
            **dict.fromkeys([off_policy.WEIGHTS] if self.correction.weighs else [], True),
        }

    def limited(self, tokens: int | None) -> Algorithm:
        """With so many tokens as the divisor of dr_grpo, where none is written."""
        method, params = self.advantages
        fields = type(params).model_fields
        if tokens is None or "max_tokens" not in fields or "max_tokens" in params.model_fields_set:
            return self
        own = Component(method, params.model_copy(update={"max_tokens": tokens}))
        same = {
            k: own for k in ("base", "advantages", "bounds") if getattr(self, k) is self.advantages
        }
        return replace(self, **same)

    def correct(self, rollouts: Rollouts) -> tuple[Rollouts, dict[str, float]]:
        """The rollouts for `signals` and the loss, corrected, and metrics; see `off_policy`."""
        return off_policy.correct(self.correction, rollouts)

    def signals(
        self, rollouts: Rollouts, memory: Memory | None = None, batch_size: int | None = None
    ) -> Signals:
        """The driver half, once per rollout batch over all its groups.

        memory: of the signals of the batch before, {} for the first; batch_size: sequences of an
        optimizer batch, which are taken in order (none: all), over which loss terms are means.
        Raises ValueError when an input that the method needs is missing or out of range, or when
        a method's function returns a shape that its record does not declare.
        """
        self._check(rollouts, memory)
        terms = self._driven(rollouts, memory or {})
        values: dict[str, Any] = {k: term.value for k, term in terms.items()}
        if bounds := values.pop("bounds", None):
            values |= zip(("low", "high"), bounds, strict=True)
        for added in self.terms:
            size = batch_size or max(len(rollouts), 1)
            values[added.key] = added.weights(rollouts, values[added.key], size)
        if self.correction.weighs:
            values[off_policy.WEIGHTS] = rollouts.rollout_is_weights
        columns = {k: self._column(k, v, rollouts) for k, v in values.items()}
        metrics = {k: v for term in terms.values() for k, v in term.metrics.items()}
        if rollouts.sample_mask is not None:
            metrics["rollouts/masked_share"] = float((~rollouts.kept).double().mean())
        low, high = self.constant_bounds or (columns.pop("low"), columns.pop("high"))
        reports = {k: v for term in terms.values() for k, v in term.reports.items()}
        kept = {k: term.memory for k, term in terms.items() if term.memory}
        return Signals(columns.pop("advantages"), low, high, columns, metrics, reports, kept)

    def _driven(self, rollouts: Rollouts, memory: Memory) -> dict[str, Term]:
        """What the driver's functions return, by the signal that each gives."""
        (method, params), bounds = self.advantages, self.bounds
        remembered = [memory.get("advantages", {})] if "memory" in method.needs else []
        terms = {"advantages": method.advantages(rollouts, params, *remembered)}
        if bounds.method.bounds:
            terms["bounds"] = bounds.method.bounds(rollouts, bounds.params)
        for name, extra in self.base.method.extras.items():
            terms[name] = extra(rollouts, self.base.params)
        for added in self.terms:
            past = memory.get(added.key, {})
            terms[added.key] = added.term.coef(rollouts, added.params, past)
        return terms

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

    def _check(self, rollouts: Rollouts, memory: Memory | None) -> None:
        off_policy.check(self.correction, rollouts)
        if "memory" in self.needs and memory is None:
            raise ValueError(
                f"{self.name} remembers the batches before: give `Algorithm.signals` the memory of "
                "the signals before, {} for the first"
            )
        for need, remedy in PER_SEQUENCE.items():
            given = getattr(rollouts, need)
            if need in self.needs and (given is None or (isinstance(given, dict) and not given)):
                raise ValueError(f"{self.name} needs {need}: {remedy}")
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
        for name in self.unit_columns:
            self._check_unit(rollouts.column(name))

    def _check_unit(self, rewards: Tensor) -> None:
        outside = (rewards < 0) | (rewards > 1)
        if outside.any():
            row = int(outside.nonzero()[0])
            raise ValueError(
                f"{self.name} needs rewards in [0, 1], but sequence {row} has "
                f"{float(rewards[row]):g}: map them, e.g. (R + 1) / 2 for rewards of +-1"
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
        """bool [B]: sequences that add nothing to the gradient: no advantage, in no loss term."""
        zero = (signals.advantages == 0).all(1)
        for added in self.terms:
            zero = zero & (signals.extras[added.key][:, 0] == 0)
        return zero if self.base.method.flat_group_is_inert else zero.new_zeros(zero.shape)

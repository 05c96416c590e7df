"""A method, or a combination, ready to use: the kernel with its riders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nemo_algos.algorithms.extensions import off_policy
from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.algorithms.extensions.terms import WeightedTerm
from nemo_algos.algorithms.kernel import (
    Component,
    Kernel,
    Memory,
    Method,
    Signal,
    Signals,
    group_advantages,
)
from nemo_algos.algorithms.record import OF_PARTNERS, TOKEN_INPUTS

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


SUCCESS = "success_reward"  # the parameter that names a part of the reward


def needs_of_advantages(component: Component) -> frozenset[str]:
    """What its advantages need."""
    method, params = component
    own = method.advantages is not group_advantages
    return (method.needs - OF_PARTNERS if own else frozenset()) | params.needs


def needs_of_rest(method: Method) -> frozenset[str]:
    """What its bounds and extras need."""
    inputs = TOKEN_INPUTS if method.extras else frozenset[str]()
    more = method.bounds or method.extras
    return method.needs & (inputs | {"unit_rewards"}) if more else frozenset()


@dataclass(frozen=True)
class Algorithm(Kernel):
    """terms: what the loss has beside the surrogate; correction: for another policy's samples."""

    terms: tuple[WeightedTerm, ...] = ()
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)

    @property
    def name(self) -> str:
        """The method's name, or erpo+etr+nll for ERPO's advantages, ETR's bounds, an NLL term."""
        components = (self.advantages, self.base, self.bounds)
        names = [c.method.name for c in components] + [
            weighted.term.name for weighted in self.terms
        ]
        return "+".join(dict.fromkeys(names))

    @property
    def needs(self) -> frozenset[str]:
        """Of each component what its part of the method needs, of the terms, of the correction."""
        rest = needs_of_rest(self.base.method) | needs_of_rest(self.bounds.method)
        parts = {"reward_parts"} if self.columns else set[str]()
        sampled = {"gen_logprobs"} if self.correction.active else set[str]()
        return self.advantage_needs.union(
            rest, parts, sampled, *(each.term.needs for each in self.terms)
        )

    @property
    def advantage_needs(self) -> frozenset[str]:
        """What the method that gives the advantages needs for them."""
        return needs_of_advantages(self.advantages)

    @property
    def columns(self) -> dict[str, str]:
        """The reward parts that are read by name: the key that names it -> the part."""
        parts = {"method.bounds": self.bounds.params, "method": self.base.params}
        parts |= {f"method.terms.{each.term.name}": each.params for each in self.terms}
        if self.bounds is self.base:
            del parts["method.bounds"]
        named = {f"{k}.{SUCCESS}": getattr(params, SUCCESS, None) for k, params in parts.items()}
        return {key: name for key, name in named.items() if name is not None}

    @property
    def unit_columns(self) -> set[str | None]:
        """What must be in [0, 1]: parts of the reward by name, None for the whole."""
        of_rest = [c for c in (self.base, self.bounds) if "unit_rewards" in needs_of_rest(c.method)]
        needing = [c.params for c in of_rest]
        if "unit_rewards" in self.advantage_needs:
            needing.append(self.advantages.params)
        return {getattr(params, SUCCESS, None) for params in needing}

    @property
    def per_token(self) -> dict[str, bool]:
        """As the kernel's, with the weights of terms and of the correction."""
        return {
            **super().per_token,
            **dict.fromkeys((weighted.key for weighted in self.terms), False),
            **dict.fromkeys([off_policy.WEIGHTS] if self.correction.weighs else [], True),
        }

    def with_max_tokens(self, tokens: int | None) -> Algorithm:
        """With so many tokens as the divisor of dr_grpo, where none is written."""
        method, params = self.advantages
        fields = type(params).model_fields
        if tokens is None or "max_tokens" not in fields or "max_tokens" in params.model_fields_set:
            return self
        own = Component(method, params.model_copy(update={"max_tokens": tokens}))
        slots = ("base", "advantages", "bounds")
        return replace(self, **{k: own for k in slots if getattr(self, k) is self.advantages})

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
        a method's function returns something else than its record declares.
        """
        from nemo_algos.algorithms.extensions import inputs  # which no worker needs

        off_policy.check(self.correction, rollouts)
        inputs.check(self.name, self.needs, self.unit_columns, rollouts, memory)
        past, size = memory or {}, batch_size or max(len(rollouts), 1)
        found = self.drive(rollouts, past)
        found |= {
            each.key: each.signal(rollouts, past.get(each.key, {}), size) for each in self.terms
        }
        if self.correction.weighs:
            found[off_policy.WEIGHTS] = Signal(rollouts.rollout_is_weights)
        signals = self.join(found, rollouts)
        if rollouts.sample_mask is None:
            return signals
        masked = {"rollouts/masked_share": float((~rollouts.kept).double().mean())}
        return replace(signals, metrics={**signals.metrics, **masked})

    def inert_rows(self, signals: Signals) -> Tensor:
        """bool [B]: sequences that add nothing to the gradient: no advantage, in no loss term."""
        zero = (signals.advantages == 0).all(1)
        for weighted in self.terms:
            zero = zero & (signals.extras[weighted.key][:, 0] == 0)
        return zero if self.base.flat_group_is_inert else zero.new_zeros(zero.shape)

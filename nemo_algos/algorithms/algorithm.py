"""A method, or a combination, ready to use: the kernel with its extensions."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.extensions.correction import (
    WEIGHTS,
    CorrectionConfig,
    check_corrected,
    correct,
)
from nemo_algos.algorithms.extensions.terms import WeightedTerm
from nemo_algos.algorithms.kernel import (
    Component,
    DriverOutput,
    Kernel,
    Memory,
    Method,
    Signals,
    group_advantages,
)
from nemo_algos.algorithms.record import OF_PARTNERS, TOKEN_INPUTS

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerSequence


SUCCESS = "success_reward"  # the parameter that names a part of the reward
PER_SEQUENCE = {
    "reward_parts": "name the parts of the reward, each [B]",
    "turn_rewards": "say what each turn has earned, [B, T] (engines: parts turn_1, turn_2, ...)",
    "prompt": "give each sequence the number of its prompt [B], e.g. `prompt_key` of its tokens",
    "drift": "measure how far the policy has moved since the previous batch, [B]",
}
LOGPROBS = ("old_logprobs", "ref_logprobs", "gen_logprobs")
POSITIVE = (
    "{name} has {value:g} on a response token, and a logarithm of a probability is never above 0. "
    "Give log-probabilities, not probabilities or losses (negative log-likelihoods)."
)


def needs_of_advantages(component: Component) -> frozenset[str]:
    """The inputs that the component's advantages need."""
    method, params = component
    own = method.advantages is not group_advantages
    return (method.needs - OF_PARTNERS if own else frozenset()) | params.needs


def needs_of_rest(method: Method) -> frozenset[str]:
    """The inputs that the method's bounds and extras need."""
    inputs = TOKEN_INPUTS if method.extras else frozenset[str]()
    more = method.bounds or method.extras
    if more:
        return method.needs & (inputs | {"unit_rewards", "turn_rewards"})
    return frozenset()


@dataclass(frozen=True)
class Algorithm(Kernel):
    """terms: what the loss has beside the surrogate; correction: for another policy's samples."""

    terms: tuple[WeightedTerm, ...] = ()
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)

    @property
    def name(self) -> str:
        """The method's name, or erpo+etr+nll for ERPO's advantages, ETR's bounds, an NLL term."""
        components = (self.advantages, self.base, self.bounds)
        names = [component.method.name for component in components]
        names += [weighted.term.name for weighted in self.terms]
        return "+".join(dict.fromkeys(names))

    @cached_property
    def needs(self) -> frozenset[str]:
        """Inputs needed by the components, the loss terms and the correction."""
        rest = needs_of_rest(self.base.method) | needs_of_rest(self.bounds.method)
        parts = {"reward_parts"} if self.columns else set[str]()
        sampled = {"gen_logprobs"} if self.correction.active else set[str]()
        return self.advantage_needs.union(
            rest, parts, sampled, *(each.term.needs for each in self.terms)
        )

    @property
    def advantage_needs(self) -> frozenset[str]:
        """The inputs that the advantages need."""
        return needs_of_advantages(self.advantages)

    @property
    def success_keys(self) -> dict[str, str | None]:
        """Where a part of the reward can be named: the key -> the part, None for the whole."""
        parts = {"method.bounds": self.bounds.params, "method": self.base.params}
        parts |= {f"method.terms.{each.term.name}": each.params for each in self.terms}
        if self.bounds is self.base:
            del parts["method.bounds"]
        named = {k: params for k, params in parts.items() if hasattr(params, SUCCESS)}
        return {f"{k}.{SUCCESS}": getattr(params, SUCCESS) for k, params in named.items()}

    @property
    def columns(self) -> dict[str, str]:
        """The reward parts that are read by name: the key that names it -> the part."""
        return {key: name for key, name in self.success_keys.items() if name is not None}

    @property
    def success_readers(self) -> list[str]:
        """The methods and terms that take the whole reward, above 0, for a success."""
        slots = {"advantages": self.advantages, "bounds": self.bounds, "loss": self.base}
        readers = [c for slot, c in slots.items() if slot in c.method.success]
        names = []
        for c in readers:
            if getattr(c.params, SUCCESS, None) is None:
                names.append(c.method.name)
        for each in self.terms:
            if each.term.success and getattr(each.params, SUCCESS, None) is None:
                names.append(each.term.name)
        return list(dict.fromkeys(names))

    def success_remark(self, rollouts: Rollouts) -> str:
        """A sentence where rewards differ and yet all of them are successes, else "".

        A sum of rewards with a part that each response earns does that: no pass rate is left.
        """
        readers = self.success_readers
        outcomes = rollouts.column(None)
        differ = ~rollouts.groups.flat(outcomes)[rollouts.groups.index]
        if not readers or not differ.any():
            return ""
        if not core.groups.succeeded(outcomes)[differ].all():
            return ""
        unnamed = [key for key, part in self.success_keys.items() if part is None]
        remedy = "Give wrong responses a reward of 0 or less"
        if unnamed:
            remedy += f", or name the part of the reward that is: `{unnamed[0]}`"
        return (
            "every response in a group whose rewards differ has a reward above 0, and "
            f"{' and '.join(readers)} reads that as a success, so no pass rate is left. {remedy}."
        )

    @property
    def unit_columns(self) -> set[str | None]:
        """What must be in [0, 1]: parts of the reward by name, None for the whole."""
        of_rest = []
        for c in (self.base, self.bounds):
            if "unit_rewards" in needs_of_rest(c.method):
                of_rest.append(c)
        needing = [c.params for c in of_rest]
        if "unit_rewards" in self.advantage_needs:
            needing.append(self.advantages.params)
        return {getattr(params, SUCCESS, None) for params in needing}

    @property
    def per_token(self) -> dict[str, bool]:
        """`Kernel.per_token` plus the weights of terms and of the correction."""
        return {
            **super().per_token,
            **dict.fromkeys((weighted.key for weighted in self.terms), False),
            **dict.fromkeys([WEIGHTS] if self.correction.weighs else [], True),
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
        """The rollouts as `signals` and the loss take them, and metrics: `correction.correct`."""
        return correct(self.correction, rollouts)

    def signals(
        self, rollouts: Rollouts, memory: Memory | None = None, batch_size: int | None = None
    ) -> Signals:
        """The driver half, once per rollout batch over all its groups.

        memory: of the signals of the batch before, {} for the first; batch_size: sequences of an
        optimizer batch, which are taken in order (none: all), over which loss terms are means.
        Raises ValueError when an input that the method needs is missing or out of range, or when
        a method's function returns something else than its record declares.
        """
        check_corrected(self.correction, rollouts)
        check_inputs(self.name, self.needs, self.unit_columns, rollouts, memory)
        past = memory or {}
        size = batch_size or max(len(rollouts), 1)
        outputs = self.compute_signals(rollouts, past)
        for term in self.terms:
            outputs[term.key] = term.signal(rollouts, past.get(term.key, {}), size)
        if self.correction.weighs:
            outputs[WEIGHTS] = DriverOutput(rollouts.rollout_is_weights)
        signals = self.to_columns(outputs, rollouts)
        if rollouts.sample_mask is None:
            return signals
        masked = {"rollouts/masked_share": float((~rollouts.kept).double().mean())}
        return replace(signals, metrics={**signals.metrics, **masked})

    def inert_rows(self, signals: Signals) -> Tensor:
        """bool [B]: sequences that add nothing to the gradient: no advantage, in no loss term."""
        zero = (signals.advantages == 0).all(1)
        for weighted in self.terms:
            zero = zero & (signals.extras[weighted.key][:, 0] == 0)
        if self.base.flat_group_is_inert:
            return zero
        return zero.new_zeros(zero.shape)


def check_inputs(
    name: str,
    needs: Set[str],
    units: Set[str | None],
    rollouts: Rollouts,
    memory: Memory | None,
) -> None:
    """Raises ValueError where something that the driver half needs is missing or out of range.

    units: the parts of the reward that must be in [0, 1], None for the whole.
    """
    if "memory" in needs and memory is None:
        raise ValueError(
            f"{name} remembers earlier batches. Give `Algorithm.signals` the memory of the "
            "previous signals, {} at first."
        )
    for need, remedy in PER_SEQUENCE.items():
        given = getattr(rollouts, need)
        if need in needs and (given is None or (isinstance(given, dict) and not given)):
            raise ValueError(f"{name} needs {need}: {remedy}")
    for need in TOKEN_INPUTS & needs:
        value = getattr(rollouts, need)
        if value is None:
            raise ValueError(f"{name} needs {need} [B, S]. Compute it for the rollout batch.")
        if not _all_finite(value + rollouts.old_logprobs, rollouts.mask):
            raise ValueError(
                f"the {need} of a response token is not finite, and {name} would spread it over "
                "the group. Look for the NaN in the model's forward pass."
            )
    for name_of in LOGPROBS:
        _check_logprobs(name_of, getattr(rollouts, name_of), rollouts)
    for column in units:
        _check_unit(name, rollouts.column(column))


def _check_unit(name: str, rewards: PerSequence) -> None:
    outside = (rewards < -core.groups.EQUAL) | (rewards > 1 + core.groups.EQUAL)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"{name} needs rewards in [0, 1], but sequence {row} has {float(rewards[row]):g}. "
            "Map them, e.g. (R + 1) / 2 for rewards of -1 and 1."
        )


def _check_logprobs(name: str, values: Tensor | None, rollouts: Rollouts) -> None:
    """Raises ValueError where a finite value on the mask is more than rounding above 0."""
    if values is None:
        return
    positive = rollouts.mask & (values > rollouts.largest_logprob) & values.isfinite()
    if positive.any():
        raise ValueError(POSITIVE.format(name=name, value=float(values[positive].max())))


def _all_finite(values: Tensor, mask: Mask) -> bool:
    """Whether no value on the mask is NaN or infinite; one sum tells, unless it overflows."""
    return bool(values.where(mask, 0.0).sum().isfinite() or (values.isfinite() | ~mask).all())

"""Terms that a loss has beside the surrogate: loss = -J + KL + sum of coef mean(values).

`method: {name: etr, terms: {entropy: {coef: 0.001}, nll: {}}}`. Like a method, a term has a
driver half and a worker half. The driver half counts the term's own tokens (or sequences) over each
whole optimizer batch, and gives every sequence its weight, coefficient over count; the worker half
adds weight x values. So a term does not depend on how a batch is cut, and a weight is one more
signal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Memory, Signals
from nemo_algos.algorithms.record import Need
from nemo_algos.findings import Section

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


class TermParams(Section):
    """What every term has: its coefficient, and what its mean is over."""

    coef: float = Field(default=0.001, ge=0)
    aggregation: Literal["token", "sequence"] = "token"


class AdaptiveEntropyParams(Section):
    """Skywork-OR1: target is its tgt-ent (nats a token), start its c_0, delta its Delta.

    largest: the limit of c that their scripts set.
    """

    target: float = Field(default=0.2, gt=0)
    start: float = Field(default=0.0, ge=0)
    delta: float = Field(default=0.0001, gt=0)
    largest: float = Field(default=0.005, gt=0)
    aggregation: Literal["token", "sequence"] = "token"

    @model_validator(mode="after")
    def _starts_in_range(self) -> AdaptiveEntropyParams:
        if self.start > self.largest:
            raise ValueError(f"start={self.start} exceeds largest={self.largest}. Lower it.")
        return self


class NLLParams(TermParams):
    """VAPO's mu."""

    coef: float = Field(default=0.1, ge=0)
    success_reward: str | None = None
    """The part of the reward that tells a success, in place of the whole."""


class TermInputs(NamedTuple):
    """A micro-batch as a term sees it: [B,S] with gradient, 0 off the mask.

    entropy: None where the term does not need its gradient.
    """

    logprobs: PerToken
    entropy: Tensor | None
    mask: Mask


def constant(rollouts: Rollouts, params: Any, memory: Memory) -> DriverOutput:
    return DriverOutput(params.coef)


def everything(rollouts: Rollouts, params: Any) -> Tensor:
    """All sequences, bool [B]."""
    return rollouts.mask.new_ones(len(rollouts))


@dataclass(frozen=True)
class LossTerm:
    """One term, and what the engines must know about it.

    driver half   coef(rollouts, params, memory) -> DriverOutput of a number, with its memory
                  rows(rollouts, params) -> bool [B], the sequences that the mean is over
    worker half   values(inputs, signals, params) -> [B,S], with gradient

    needs of both halves: entropy (of pi_old) for the driver's, entropy_gradient for the worker's,
    memory where coef remembers. holds: what the term controls, such as "entropy"; a loss has at
    most one term for each. success: rows reads a reward above 0 as a success.
    """

    name: str
    paper: str
    params: type[Section]
    values: Callable[[TermInputs, Signals, Any], Tensor]
    coef: Callable[[Rollouts, Any, Memory], DriverOutput] = constant
    rows: Callable[[Rollouts, Any], Tensor] = everything
    needs: frozenset[Need] = frozenset()
    holds: str = ""
    success: bool = False

    def __post_init__(self) -> None:
        fields = getattr(self.params, "model_fields", {})
        if not (isinstance(self.params, type) and issubclass(self.params, Section)):
            raise ValueError(f"{self.name}: params must be a subclass of nemo_algos.TermParams")
        needed = ["aggregation", *(["coef"] if self.coef is constant else [])]
        missing = [key for key in needed if key not in fields]
        if missing:
            raise ValueError(
                f"{self.name}: params have no {missing[0]}. Derive them from nemo_algos.TermParams."
            )
        unknown = sorted(self.needs - {*get_args(Need)})
        if unknown:
            raise ValueError(f"{self.name}: unknown value {unknown[0]!r} in `needs`")


class WeightedTerm(NamedTuple):
    """A term with its parameters, which are of the class `term.params`."""

    term: LossTerm
    params: Any

    @property
    def key(self) -> str:
        """Its signal's name."""
        return f"term_{self.term.name}"

    def signal(self, rollouts: Rollouts, memory: Memory, batch_size: int) -> DriverOutput:
        """Weights [B] float64: coef / count in the row's optimizer batch; 0 for rows left out."""
        coef = self.term.coef(rollouts, self.params, memory)
        if not isinstance(coef, DriverOutput):
            got = type(coef).__name__
            name = self.term.name
            raise ValueError(
                f"`coef` of {name} must return DriverOutput(value), but returned a {got}"
            )
        tokens = rollouts.lengths.double()
        of_tokens = self.params.aggregation == "token"
        inside = self.term.rows(rollouts, self.params) & (tokens > 0)
        counted = (tokens if of_tokens else tokens.sign()).where(inside, 0.0)
        # [B] the row's optimizer batch, row // batch_size, without importing torch
        batch = tokens.new_ones(len(tokens)).cumsum(0).sub(1).div(batch_size).long()
        total = tokens.new_zeros(len(tokens)).index_add(0, batch, counted)[batch]
        share = coef.value / total.clamp(min=1)
        weights = share if of_tokens else share / tokens.clamp(min=1)
        return coef._replace(value=weights.where(inside, 0.0))

    def loss(self, inputs: TermInputs, signals: Signals) -> Tensor:
        """These rows' share of coef mean(values), a scalar."""
        weights = signals.extras[self.key]
        values = self.term.values(inputs, signals, self.params)
        return (values.where(inputs.mask & (weights != 0), 0.0) * weights).sum()


def losses(
    terms: Sequence[WeightedTerm],
    logprobs: PerToken,
    entropy: Tensor | None,
    mask: Mask,
    signals: Signals,
) -> dict[str, Tensor]:
    """These rows' share of each term of the loss, scalars by `terms/NAME`."""
    if not terms:
        return {}
    dtype = core.surrogate.working_dtype(logprobs)
    if entropy is not None:
        entropy = entropy.to(dtype).where(mask, 0.0)
    inputs = TermInputs(logprobs.to(dtype).where(mask, 0.0), entropy, mask)
    signals = signals.to(mask.device, dtype)
    return {f"terms/{each.term.name}": each.loss(inputs, signals) for each in terms}


def negative_entropy(inputs: TermInputs, signals: Signals, params: Any) -> Tensor:
    """-H(pi) at every token, nats."""
    assert inputs.entropy is not None
    return -inputs.entropy


def negative_logprobs(inputs: TermInputs, signals: Signals, params: Any) -> Tensor:
    """-log pi of every token."""
    return -inputs.logprobs


def successes(rollouts: Rollouts, params: NLLParams) -> Tensor:
    """The sequences with a reward above 0, bool [B]."""
    return core.groups.succeeded(rollouts.column(params.success_reward))


def adaptive(rollouts: Rollouts, params: AdaptiveEntropyParams, memory: Memory) -> DriverOutput:
    """alpha_k = c_k if e_k <= target, else 0; c_(k+1) = c_k + delta below the target, - above.

    e_k: the entropy of the policy that sampled the batch, the mean over its tokens. A batch without
    tokens changes nothing.
    """
    assert rollouts.entropy is not None
    c = memory.get("c", params.start)
    tokens = core.surrogate.token_counts(rollouts.mask).sum()
    if not tokens:
        return DriverOutput(c, memory={"c": c})
    e = float(rollouts.entropy.where(rollouts.mask, 0.0).double().sum() / tokens)
    step = params.delta * ((e < params.target) - (e > params.target))
    moved = min(max(c + step, 0.0), params.largest)
    used = c if e <= params.target else 0.0
    return DriverOutput(used, {"adaptive_entropy/coef": used}, memory={"c": moved})


ENTROPY = LossTerm(
    name="entropy",
    paper="Williams and Peng 1991; A3C, arXiv 1602.01783",
    params=TermParams,
    values=negative_entropy,
    needs=frozenset({"entropy_gradient"}),
    holds="entropy",
)
ADAPTIVE_ENTROPY = LossTerm(
    name="adaptive_entropy",
    paper="Skywork-OR1, arXiv 2505.22312",
    params=AdaptiveEntropyParams,
    values=negative_entropy,
    coef=adaptive,
    needs=frozenset({"entropy", "entropy_gradient", "memory"}),
    holds="entropy",
)
NLL = LossTerm(
    name="nll",
    paper="VAPO, arXiv 2504.05118",
    params=NLLParams,
    values=negative_logprobs,
    rows=successes,
    success=True,
)
TERMS: dict[str, LossTerm] = {t.name: t for t in (ENTROPY, ADAPTIVE_ENTROPY, NLL)}

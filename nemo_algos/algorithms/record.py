"""What a method's record is made of: parameters, needs; what is wrong with it. No torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import AfterValidator, Field

from nemo_algos.findings import Section, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.shapes import Mask

Slot = Literal["advantages", "bounds", "loss"]
Std = Literal["sample", "population", "none"]
T = TypeVar("T")
# which functions read a parameter; one without a mark is read by those of the loss
OfAdvantages = Annotated[T, "advantages"]
OfBounds = Annotated[T, "bounds"]
OfLoss = Annotated[T, "loss"]


class Usual(NamedTuple):
    """The sizes in papers and their ablations, with room; `check` warns of others."""

    low: float
    high: float


TokenClip = Annotated[float, Usual(0.05, 0.5)]
SequenceClip = Annotated[float, Usual(1e-4, 0.3)]


def _undivided(std: Std) -> Std:
    if std != "none":
        raise ValueError(
            "this method does not divide by a standard deviation. Remove `advantage_std`."
        )
    return std


Undivided = OfAdvantages[Annotated[Std, AfterValidator(_undivided)]]


class Params(Section):
    """Parameters of every method; its own class adds its paper's, with the paper's defaults."""

    advantage_std: OfAdvantages[Std] = "sample"
    """Standard deviation that divides a group's advantages: sample (n - 1), population (n) or none.
    """
    max_log_ratio: float = Field(default=20.0, gt=0, le=20)
    """Limit of |log r|, nats: beyond it a token has no gradient."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Upper limit of the ratio where A < 0 (arXiv 1912.09729)."""

    @property
    def needs(self) -> frozenset[str]:
        """What the method needs with these values, beside what its record says."""
        return frozenset()

    @property
    def whole_batch(self) -> bool:
        """An override of `Method.whole_batch` that depends on parameter values."""
        return False

    @property
    def flat_group_is_inert(self) -> bool:
        """An override of `Method.flat_group_is_inert` that depends on parameter values."""
        return False

    @property
    def score_form(self) -> bool:
        """Whether the loss is A' log pi with these values, though the record says a ratio."""
        return False

    @property
    def steep(self) -> bool:
        """Whether its gradient needs clipping (`policy.max_grad_norm`)."""
        return False

    @property
    def non_default(self) -> list[str]:
        """The names of the parameters that do not have their default."""
        fields = type(self).model_fields.items()
        defaults = {}
        for k, field in fields:
            defaults[k] = field.get_default(call_default_factory=True)
        return [k for k, default in defaults.items() if getattr(self, k) != default]


class ClipParams(Params):
    """Constant bounds: the ratio is clipped to [1 - clip_low, 1 + clip_high]."""

    clip_low: OfBounds[TokenClip] = Field(default=0.2, ge=0, le=1)
    """Lower bound's distance from 1."""
    clip_high: OfBounds[TokenClip] = Field(default=0.2, ge=0)
    """Upper bound's distance from 1."""


# of rollouts and engine. memory: `advantages` takes a third argument, the memory of its previous
# DriverOutput ({} at first); unit_rewards: of bounds and extras where there are any, else of the
# advantages; teacher: ref_logprobs are another model's; the last two are of partners
Need = Literal[
    "ref_logprobs", "entropy", "gen_logprobs", "unit_rewards", "reward_parts", "turn_rewards",
    "memory", "prompt", "drift", "entropy_gradient", "teacher", "sequence_advantages",
    "sequence_mean",
]  # fmt: skip
Form = Literal["ratio", "logprob"]
Clips = Literal["ratio", "token", "weight"]
Per = Literal["token", "sequence"]
Ratio = Literal["token", "turn", "sequence"]
TOKEN_INPUTS = frozenset[Need](("ref_logprobs", "entropy", "gen_logprobs"))
OF_PARTNERS = frozenset[Need](("sequence_advantages", "sequence_mean"))
KNOWN = {"form": Form, "clips": Clips, "ratio": Ratio, "mean": Per}
KNOWN |= {"needs": Need, "own": Slot, "success": Slot}
ARGUMENTS = {"advantages": 2, "bounds": 2, "constant_bounds": 1, "log_ratio": 4, "reweight": 4}


def check(method: Any) -> None:
    """Raises ValueError with the first thing wrong with the record."""
    values = {k: getattr(method, k) for k in KNOWN}
    for key, value in values.items():
        _check_choice(method.name, key, value, get_args(KNOWN[key]))
    per_token = ("advantages", "bounds", *method.extras)
    _check_choice(method.name, "per_token", method.per_token, per_token)
    if not (isinstance(method.params, type) and issubclass(method.params, Params)):
        raise ValueError(f"{method.name}: params must be a subclass of nemo_algos.Params")
    fixed = not method.bounds and method.constant_bounds is type(method).constant_bounds
    if fixed and not issubclass(method.params, ClipParams):
        raise ValueError(
            f"{method.name}: the default bounds need clip_low and clip_high. Derive params from "
            "ClipParams, or give bounds."
        )
    for key, number in ARGUMENTS.items():
        more = key == "advantages" and "memory" in method.needs
        _check_function(f"{method.name}: {key}", getattr(method, key), number + more)
    for key, extra in method.extras.items():
        _check_function(f"{method.name}: extras[{key!r}]", extra, 2)


def _check_choice(name: str, key: str, value: Any, known: tuple[str, ...]) -> None:
    if value is None:
        return
    several = isinstance(value, (set, frozenset, tuple, list))
    for one in value if several else (value,):
        if one not in known:
            hint = did_you_mean(str(one), list(known))
            raise ValueError(f"{name}: unknown `{key}` {one!r}{hint}")


def _check_function(name: str, function: Any, number: int) -> None:
    if function is None:
        return
    if not callable(function):
        raise ValueError(f"{name} must be a function, got {function!r}")
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError:
        takes = ", ".join(inspect.signature(function).parameters)
        raise ValueError(f"{name} must take {number} arguments, but takes ({takes})") from None


def check_signals(kernel: Any, found: Mapping[str, Any], kind: type) -> None:
    """Raises ValueError where a function returned no DriverOutput, or one of the wrong kind."""
    owners = {"advantages": kernel.advantages, "bounds": kernel.bounds}
    for key, signal in found.items():
        name = f"`{key}` of {owners.get(key, kernel.base).method.name}"
        if not isinstance(signal, kind):
            got = type(signal).__name__
            raise ValueError(f"{name} must return DriverOutput(value), but returned a {got}")
        pair = isinstance(signal.value, (tuple, list)) and len(signal.value) == 2
        if key == "bounds" and not pair:
            got = type(signal.value).__name__
            raise ValueError(
                f"{name} must return DriverOutput((low, high)), but returned one {got}"
            )
        for value in signal.value if key == "bounds" else [signal.value]:
            if not (isinstance(value, (int, float)) or hasattr(value, "isfinite")):
                got = type(value).__name__
                raise ValueError(f"{name} must give a tensor or a number, but gave a {got}")


def check_shape(kernel: Any, name: str, value: Tensor, shape: Any, mask: Mask) -> None:
    """Raises ValueError where a value has another shape than declared, or is not a number.

    A bound may be infinite, which clips nothing; it may not be below 0.
    """
    if value.shape != shape:
        raise ValueError(
            f"{name} of {_name(kernel)} has shape {list(value.shape)}, but its record declares "
            f"{list(shape)}. List what is [B, S] in Method.per_token."
        )
    used = mask if value.dim() == 2 else mask.any(1)
    bounds = name in ("low", "high")
    bad = used & ~(value >= 0 if bounds else value.isfinite())
    if not bad.any():
        return
    row = int(bad.nonzero()[0][0])
    owner = kernel.base
    if bounds:
        owner = kernel.bounds
    elif name == "advantages":
        owner = kernel.advantages
    signal = f"`{name}` of {owner.method.name}"
    if bounds:
        raise ValueError(
            f"{signal} is {float(value[bad][0]):g} for sequence {row}, but the ratio is clipped to "
            "[1 - low, 1 + high], so both must be 0 or more. Look for a NaN or a sign there."
        )
    raise ValueError(
        f"{signal} gave a value that is not finite for sequence {row}. Look for a division by 0 or "
        "a logarithm in that function."
    )


def check_constant_bounds(kernel: Any) -> None:
    """Raises ValueError where `constant_bounds` gives no two numbers of 0 or more."""
    method, params = kernel.bounds
    if method.bounds:
        return
    pair = method.constant_bounds(params)
    two = isinstance(pair, tuple) and len(pair) == 2
    if not (two and all(isinstance(bound, (int, float)) and bound >= 0 for bound in pair)):
        raise ValueError(
            f"`constant_bounds` of {method.name} gave {pair!r}, but must give two numbers of 0 or "
            "more: (low, high) clips the ratio to [1 - low, 1 + high]."
        )


def check_shaped(method: Any, name: str, value: Any, mask: Mask) -> None:
    """Raises ValueError where a function of the worker half gave no tensor [B,S] or [B,1]."""
    rows, positions = mask.shape
    shape = getattr(value, "shape", None)
    if shape not in ((rows, positions), (rows, 1)):
        got = type(value).__name__ if shape is None else f"shape {[*shape]}"
        raise ValueError(
            f"`{name}` of {method.name} gave {got}, but must give a tensor [{rows}, {positions}], "
            f"one value per token, or [{rows}, 1], one per sequence."
        )


def _name(kernel: Any) -> str:
    return "+".join(dict.fromkeys(c.method.name for c in (kernel.advantages, kernel.bounds)))

"""What is wrong with a method's record, or with what its functions return. No torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from nemo_algos.algorithms.params import ClipParams, Params, Slot
from nemo_algos.config import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

# of rollouts and engine. memory: `advantages` takes a third argument, the memory of its Signal
# before ({} at first); unit_rewards: of bounds and extras where there are any, else of the
# advantages; teacher: ref_logprobs are another model's; the last two are of partners
Need = Literal[
    "ref_logprobs", "entropy", "gen_logprobs", "unit_rewards", "reward_parts", "memory", "prompt",
    "drift", "entropy_gradient", "teacher", "sequence_advantages", "sequence_mean",
]  # fmt: skip
Form = Literal["ratio", "logprob"]
Clips = Literal["ratio", "token", "weight"]
Per = Literal["token", "sequence"]
TOKEN_INPUTS = frozenset[Need](("ref_logprobs", "entropy", "gen_logprobs"))
OF_PARTNERS = frozenset[Need](("sequence_advantages", "sequence_mean"))
KNOWN = {"form": Form, "clips": Clips, "ratio": Per, "mean": Per}
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
        reason = "the default bounds need clip_low and clip_high"
        raise ValueError(f"{method.name}: {reason}. Derive params from ClipParams, or give bounds.")
    for key, number in ARGUMENTS.items():
        more = key == "advantages" and "memory" in method.needs
        _check_function(f"{method.name}: {key}", getattr(method, key), number + more)
    for key, extra in method.extras.items():
        _check_function(f"{method.name}: extras[{key!r}]", extra, 2)


def _check_choice(name: str, key: str, value: Any, known: tuple[str, ...]) -> None:
    several = isinstance(value, (set, frozenset, tuple, list))
    for one in value if several else () if value is None else (value,):
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
    """Raises ValueError where a function returned no Signal, or one of the wrong kind."""
    owners = {"advantages": kernel.advantages, "bounds": kernel.bounds}
    for key, signal in found.items():
        name = f"`{key}` of {owners.get(key, kernel.base).method.name}"
        if not isinstance(signal, kind):
            got = type(signal).__name__
            raise ValueError(f"{name} must return Signal(value), but returned a {got}")
        pair = isinstance(signal.value, (tuple, list)) and len(signal.value) == 2
        if key == "bounds" and not pair:
            got = type(signal.value).__name__
            raise ValueError(f"{name} must return Signal((low, high)), but returned one {got}")
        for value in signal.value if key == "bounds" else [signal.value]:
            if not (isinstance(value, (int, float)) or hasattr(value, "isfinite")):
                got = type(value).__name__
                raise ValueError(f"{name} must give a tensor or a number, but gave a {got}")


def check_shape(kernel: Any, name: str, value: Tensor, shape: Any, mask: Tensor) -> None:
    """Raises ValueError where a value has another shape than declared, or advantages are NaN."""
    if value.shape != shape:
        raise ValueError(
            f"{name} of {_name(kernel)} has shape {list(value.shape)}, but its record declares "
            f"{list(shape)}. List what is [B, S] in Method.per_token."
        )
    used = mask if value.dim() == 2 else mask.any(1)
    if name == "advantages" and not (value.isfinite() | ~used).all():
        row = int((~value.isfinite() & used).nonzero()[0][0])
        method = kernel.advantages.method.name
        raise ValueError(
            f"`advantages` of {method} gave a value that is not finite for sequence {row}. Look "
            "for a division by 0 or a logarithm in that function."
        )


def _name(kernel: Any) -> str:
    return "+".join(dict.fromkeys(c.method.name for c in (kernel.advantages, kernel.bounds)))

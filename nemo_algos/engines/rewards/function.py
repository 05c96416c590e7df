"""A reward function: what it is given, by its parameters' names, and what it may return."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PAIR = ("response", "answer")
GIVEN = (*PAIR, "prompt", "row", "tokens")
NO_PLACE = {*GIVEN[2:], "prompts", "completions"}  # by name only; TRL's are of lists
DETAIL_CHARS = 300
# ours by the short names that configs use; any other is a "module:function"
NAMED = {
    "math": "nemo_algos.engines.rewards.math:verify_math",
    "countdown": "nemo_algos.engines.data.countdown:verify",
    "choice": "nemo_algos.engines.rewards.choice:verify_choice",
    "code": "nemo_algos.engines.execution.code:verify_code",
    "code_remote": "nemo_algos.engines.execution.remote:verify_code_remote",
    "sql": "nemo_algos.engines.execution.sql:verify_sql",
    "boxed": "nemo_algos.engines.rewards.answers:boxed",
    "letter": "nemo_algos.engines.rewards.answers:letter",
}
BEFORE = "nemo_algos.lab.rewards."  # where some of these were: configs and folders may say so


def path_of(name: str) -> str:
    """The "module:function" of a short name, or what is one already; one of before, where it is."""
    if name.startswith(BEFORE):
        function = name.partition(":")[2]
        return next((now for now in NAMED.values() if now.endswith(f":{function}")), name)
    return NAMED.get(name, name)


class RewardFunction:
    """A function of some of `given`, by name; or of (response, answer), whatever it calls them.

    response, answer, prompt: texts; row: the data's row, a dict; tokens: of the response, a number.
    **kwargs gets them all. Raises ValueError where the function needs anything else, or could take
    more of these than are given here.
    """

    def __init__(self, function: Callable[..., Any], given: Sequence[str] = GIVEN) -> None:
        self.function = function
        self.names = _names(function, given)  # None: response and answer, by place

    def __call__(self, given: Mapping[str, Any]) -> Any:
        """What the function returns for one response: a number, or what becomes one by await."""
        if self.names is None:
            return self.function(given["response"], given["answer"])
        return self.function(**{name: given[name] for name in self.names if name in given})


def _names(function: Callable[..., Any], given: Sequence[str]) -> tuple[str, ...] | None:
    if not callable(function):
        raise ValueError("is not a function")
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C, which has none
        return None
    parameters = signature.parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = []
    for p in parameters:
        if p.name in given and p.kind in by_name:
            known.append(p.name)
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    others = (p for p in parameters if p.name not in known and p.kind not in rest)
    needed = []
    for p in others:
        if p.default is p.empty or p.name in GIVEN:
            needed.append(p.name)
    every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    if not needed and (known or every):
        return tuple(given) if every else tuple(known)
    if _takes_two(signature) and not every and NO_PLACE.isdisjoint([*needed, *known]):
        return None
    asks = f"needs {', '.join(needed)}" if needed else "takes nothing"
    raise ValueError(
        f"{asks}. A reward function may take {', '.join(given)} of one response, "
        "and returns a number."
    )


def _takes_two(signature: inspect.Signature) -> bool:
    try:
        signature.bind(*PAIR)
    except TypeError:
        return False
    return True


def number(value: Any) -> float:
    """The reward. Raises TypeError or ValueError for what is no finite number."""
    try:
        reward = None if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError):
        reward = None
    if reward is None:
        kind = type(value).__name__
        raise TypeError(f"the function returned {value!r} ({kind}). A reward must be a number.")
    if not math.isfinite(reward):
        raise ValueError(f"the function returned {reward}. A reward must be a finite number.")
    return reward


def describe(error: BaseException) -> str:
    """Type and text of an exception, cut."""
    return f"{type(error).__name__}: {error}"[:DETAIL_CHARS]

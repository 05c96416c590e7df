"""Reward functions with a mistake each, as `env.SECTION.verifier` names them."""

import re
from typing import Any


def _last(pattern: str, response: str) -> str:
    return (re.findall(pattern, response) or [""])[-1]


def right(response: str, answer: str) -> float:
    """No mistake: the last box."""
    return float(_last(r"\\boxed\{(.*?)\}", response) == answer)


def tags(response: str, answer: str) -> float:
    """Reads another format than the prompt asks for."""
    return float(_last(r"<answer>(.*?)</answer>", response) == answer)


def nothing(response: str, answer: str) -> Any:
    """Forgets to return."""
    right(response, answer)


def raises(response: str, answer: str) -> float:
    return 1 / (len(answer) - len(answer))


def numbers(response: str, answer: str) -> float:
    """Reads no fractions: raises ValueError on the gold answer of some rows."""
    return float(_last(r"\\boxed\{(.*?)\}", response) == answer and int(answer) >= 0)

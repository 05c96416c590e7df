"""Reward functions with a mistake each, as `env.SECTION.verifier` names them."""

import re
import time
from typing import Any


def _last(pattern: str, response: str) -> str:
    return (re.findall(pattern, response) or [""])[-1]


def right(response: str, answer: str) -> float:
    """No mistake: the last box."""
    return float(_last(r"\\boxed\{(.*?)\}", response) == answer)


def stern(response: str, answer: str) -> float:
    """A wrong answer costs more than none."""
    return 2 * right(response, answer) - float("\\boxed{" in response)


def tags(response: str, answer: str) -> float:
    """Reads another format than the prompt asks for."""
    return float(_last(r"<answer>(.*?)</answer>", response) == answer)


def never(response: str, answer: str) -> float:
    return 0.0


def always(response: str, answer: str) -> float:
    return 1.0


def nothing(response: str, answer: str) -> Any:
    """Forgets to return."""
    right(response, answer)


def nan(response: str, answer: str) -> float:
    return float("nan")


def raises(response: str, answer: str) -> float:
    return 1 / (len(answer) - len(answer))


def numbers(response: str, answer: str) -> float:
    """Reads no fractions: raises ValueError on the gold answer of some rows."""
    return float(_last(r"\\boxed\{(.*?)\}", response) == answer and int(answer) >= 0)


def anything(response: str, answer: str) -> float:
    """Pays whatever is in a box."""
    return float("\\boxed{" in response)


def first(response: str, answer: str) -> float:
    """Reads the first box, not the last."""
    return float((re.findall(r"\\boxed\{(.*?)\}", response) or [""])[0] == answer)


def slow(response: str, answer: str) -> float:
    time.sleep(11)
    return right(response, answer)

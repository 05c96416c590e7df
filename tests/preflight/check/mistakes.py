"""The planted mistakes of mistakes.txt, and what is close to them and right."""

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ONE, DENSE, MOE = "nemo_rl.yaml", "dense.yaml", "moe.yaml"
SHARED_BY = ("values", "schema", "method", "fp8")  # `check` and the launchers: no rules of theirs


class Mistake(NamedTuple):
    """rule: which finds it; words: of the message, as `Says` takes them."""

    rule: str
    config: str
    overrides: list[str]
    severity: str
    path: str
    words: str


def _spelled(overrides: str, names: dict[str, str]) -> list[str]:
    """Names in capitals stand for a key's beginning, or for several overrides."""
    whole = [names.get(one, one) for one in overrides.split(" ; ") if one]
    single = [one for several in whole for one in several.split(" ; ")]
    return [re.sub(r"^(\+?)([A-Z]+)(?=\.)", lambda m: m[1] + names[m[2]], one) for one in single]


def _read() -> tuple[list[Mistake], list[tuple[str, list[str]]]]:
    lines = [one for one in (HERE / "mistakes.txt").read_text().splitlines() if one[:1] not in "#"]
    names = dict(line.split(" = ", 1) for line in lines if re.match(r"[A-Z_]+ = ", line))
    mistakes, right = [], []
    for line in lines[len(names) :]:
        rule, config, finding, overrides = (part.strip() for part in line.split("|"))
        given = f"{config}.yaml", _spelled(overrides, names)
        if rule == "right":
            right.append(given)
            continue
        severity, key, words = re.fullmatch(r"(\w+) (\S+): (.+)", finding).groups()
        mistakes.append(Mistake(rule, *given, severity, *_spelled(key, names), words))
    return mistakes, right


_ALL, RIGHT = _read()
MISTAKES = [m for m in _ALL if m.rule not in SHARED_BY]
SHARED = [m for m in _ALL if m.rule in SHARED_BY]

"""The tables of the rules' README, by the rules' docstrings and their planted mistakes.

    uv run scripts/rules.py

A rule's row has its docstring's first paragraph, and the severities and keys of its planted
mistakes. tests/docs/test_method_pages.py holds the page to it.
"""

import inspect
import re
import sys
from pathlib import Path

from nemo_algos.preflight.check.rule import Rule
from nemo_algos.preflight.check.rules import index

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "nemo_algos" / "preflight" / "check" / "rules" / "README.md"
sys.path.append(str(ROOT / "tests" / "preflight" / "check"))
BLOCK = re.compile(r"(<!-- rules of ([\w., ]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
SHOWN = 3  # keys of a rule
HOME = "nemo_algos.preflight."


def table(modules: list[str]) -> str:
    """The rows of the rules that these modules define."""
    files = ", ".join(f"`{name.replace('.', '/')}.py`" for name in modules)
    lines = [files, "", "| rule | | holds | keys |", "|---|---|---|---|"]
    every = [*index.RULES, *index.CONFLICTS]
    for name in modules:
        rules = [rule for rule in every if rule.__module__ == HOME + name]
        assert rules, f"{PAGE.name}: {name} has no rules"
        lines += [row(rule) for rule in rules]
    return "\n".join(lines) + "\n"


def row(rule: Rule) -> str:
    """Of one rule: its name, severities, docstring and keys."""
    from mistakes import MISTAKES, SHARED

    planted = [m for m in [*MISTAKES, *SHARED] if m.rule in (rule.__name__, short(rule))]
    severities = sorted({m.severity for m in planted}, key=["error", "warning", "note"].index)
    keys = list(dict.fromkeys(m.path for m in planted))
    said = (inspect.getdoc(rule) or "").partition("\n\n")[0].replace("\n", " ")
    listed = ", ".join(f"`{key}`" for key in keys[:SHOWN])
    more = f", {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    letters = ", ".join(severity[0].upper() for severity in severities)
    return f"| `{rule.__name__}` | {letters} | {said} | {listed}{more} |"


def short(rule: Rule) -> str:
    """The module, by which mistakes.txt names rules that `check` shares with the launchers."""
    return rule.__module__.rpartition(".")[2]


def page() -> str:
    """The whole page with the tables of now."""
    return BLOCK.sub(lambda m: m[1] + table(m[2].split(", ")), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())

"""What an incident.yaml holds: a public report, the smallest input with its fault, what to find.

All keys are checked: an unknown one is refused with its path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from nemo_algos.findings import ConfigError, Finding, Section, did_you_mean, validate

ROWS = Path(__file__).parent / "rows"
State = Literal["whole", "part", "missed"]
Line = Annotated[str, Field(min_length=1)]
Level = Literal["error", "warning", "note"]
Outcome = Literal["failed", "warning"]


class Incident(Section):
    """What all incidents have; `state` is null until it has been measured."""

    report: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+#\d+$")]
    """owner/repository#number"""
    fault: Line
    """In one sentence, in our words."""
    known: bool = False
    """Whether the report was known to us when what finds it was written."""
    state: State | None = None
    why: Line | None = None
    """Why it is not found whole."""
    folder: Path = Path()

    @model_validator(mode="after")
    def _reason(self) -> Incident:
        if (self.state in ("part", "missed")) != (self.why is not None):
            raise ValueError("`why` belongs to the states part and missed, and to no other")
        return self


class FoundKey(Section):
    """A finding at one of these keys, at least of this level, with these words in its message."""

    keys: Annotated[list[str], Field(min_length=1)]
    level: Level
    says: list[str] = Field(default=[])


class Check(Incident):
    """A config and its overrides, given to `check`; `{here}` is the row's folder."""

    who: Literal["check"]
    config: str
    """A file of ours, or `examples/configs/...` of NeMo-RL."""
    overrides: list[str] = Field(default=[])
    time: Annotated[str, Field(pattern=r"^\d+:\d\d:\d\d$")] | None = None
    """The job's time limit."""
    expected: FoundKey


class Number(Section):
    """A number of `plan --json`; of several below one key the sum is taken."""

    number: str
    at_least: float | None = None
    at_most: float | None = None
    equals: bool | None = None


class Plan(Incident):
    """A config and its overrides, given to `plan`."""

    who: Literal["plan"]
    config: str
    overrides: list[str] = Field(default=[])
    gpu: str | None = None
    mean_tokens: float | None = None
    expected: Number
    in_part: Number | None = None
    """What counts as found in part."""


class Verdict(Section):
    """A verdict of `check --data`."""

    stage: Literal["tokenizer", "data", "rewards"]
    outcome: Outcome
    says: list[str] = Field(default=[])


class Data(Incident):
    """reward.py with `reward(response, answer)`, rows.jsonl (else sums), or a chat template."""

    who: Literal["data"]
    prompt: str = "{} Put the answer into \\boxed{{}}."
    """As a prompt file has it."""
    stops: list[str] = Field(default=[])
    template: tuple[str, str] | None = None
    """A part of a sound chat template, and what stands in its place."""
    expected: Verdict


class Cause(Section):
    """The names of `mismatch`, all of them (`a | b`: either), or where the difference is."""

    causes: list[str] = Field(default=[])
    where: str | None = None


class Mismatch(Incident):
    """A dump: by plant.py, or a kind of benchmarks/mismatch. `adapter` is given to the command."""

    who: Literal["mismatch"]
    kind: str | None = None
    adapter: bool = False
    previous: bool = True
    """Whether earlier checkpoints are given."""
    expected: Cause


class Traps(Section):
    """Cases that the wrong loss must fail."""

    method: str
    fails: Annotated[list[str], Field(min_length=1)]


class Conformance(Incident):
    """loss.py: the wrong `loss(batch)`, and `advantages(rewards, group, mask)` where they are."""

    who: Literal["conformance"]
    expected: Traps


class Said(Section):
    """The last command's exit status, and words of its output, or of a file that it wrote."""

    status: int
    says: list[str] = Field(default=[])
    file: str | None = None


class Command(Incident):
    """Lines of `nemo-algos`, in a copy of the row's folder; `{here}` is that copy.

    `{model}` is a folder with a small model.
    """

    who: Literal["train", "slurm"]
    commands: Annotated[list[str], Field(min_length=1)]
    expected: Said


class Value(Section):
    """A metric's value at k, or the words with which it is refused."""

    value: float | None = None
    refuses: list[str] = Field(default=[])


class Evals(Incident):
    """Rewards of each problem's responses, or their answers too, and a metric of them."""

    who: Literal["evals"]
    metric: Literal["pass@k", "best@k", "maj@k"]
    k: int
    rewards: list[list[float]]
    answers: list[list[str]] = Field(default=[])
    expected: Value


KINDS: dict[str, type[Incident]] = {
    "check": Check,
    "plan": Plan,
    "data": Data,
    "mismatch": Mismatch,
    "conformance": Conformance,
    "train": Command,
    "slurm": Command,
    "evals": Evals,
}


def read(folder: Path) -> Any:
    """The incident of a folder. Raises ConfigError with the path of each wrong key."""
    root = folder.name
    given = yaml.safe_load((folder / "incident.yaml").read_text())
    if not isinstance(given, dict):
        raise ConfigError([Finding(root, "must be a mapping of keys")])
    who = str(given.get("who"))
    if who not in KINDS:
        hint = did_you_mean(who, list(KINDS))
        raise ConfigError([Finding(f"{root}.who", f"unknown part of the product{hint}")])
    for key in ("folder", "template"):
        if key == "folder" and key in given:
            raise ConfigError([Finding(f"{root}.folder", "unknown key")])
        if isinstance(given.get(key), list):
            given[key] = tuple(given[key])
    return validate(KINDS[who], given | {"folder": folder}, root)


def read_all(rows: Path = ROWS) -> list[Any]:
    """All incidents, by the names of their folders."""
    return [read(file.parent) for file in sorted(rows.glob("*/incident.yaml"))]

"""The fixture: every method in every trap, computed, written, read from anyone, and run."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, FiniteFloat, model_validator
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.golden.conform import judge
from nemo_algos.algorithms.golden.traps import Batch, traps
from nemo_algos.algorithms.golden.verify import compute
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.config import did_you_mean
from nemo_algos.jsonl import JsonObject, read_object, replace
from nemo_algos.untrusted import refuse_code

TOLERANCE = 1e-8
Values = FiniteFloat | list[FiniteFloat | None] | list[list[FiniteFloat | None]]


class Inputs(JsonObject):
    """Beside the mask whatever a method reads, [B] or [B][S]; null is NaN."""

    __pydantic_extra__: dict[str, Values]  # pyright: ignore[reportIncompatibleVariableOverride]
    model_config = JsonObject.model_config | ConfigDict(extra="allow")
    mask: list[list[Literal[0, 1]]]


class Case(JsonObject):
    """inputs: by name; signals: the driver half's; counts: of the whole batch, also of pieces."""

    name: str
    method: str
    trap: str
    params: dict[str, Any]
    inputs: str
    signals: dict[str, Values]
    counts: dict[Literal["sequences", "tokens", "rows", "pieces"], int]
    pieces: list[list[int]] | None
    expected: dict[str, Values]


class Fixture(JsonObject):
    """cases.json, a golden file as docs/verify.md has it."""

    version: Literal[1]
    tolerance: FiniteFloat
    inputs: dict[str, Inputs]
    cases: list[Case] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, batch in self.inputs.items():
            _check_sizes(f"inputs.{name}", batch.mask, dict(batch))
        for case in self.cases:
            refuse_code([case.method, case.params], case.name)
            if case.inputs not in self.inputs:
                raise ValueError(f"{case.name}: inputs {case.inputs!r} do not exist")
            mask = self.inputs[case.inputs].mask
            _check_sizes(case.name, mask, {**case.signals, **case.expected})
            rows = sorted(row for piece in case.pieces or [range(len(mask))] for row in piece)
            if rows != list(range(len(mask))):
                raise ValueError(f"{case.name}: pieces must cover each of {len(mask)} rows once")
        return self


def _check_sizes(where: str, mask: Sequence[Sequence[int]], values: dict[str, Any]) -> None:
    sizes = [(), (len(mask),), (len(mask), *{len(row) for row in mask})]
    for name, value in values.items():
        try:
            size = np.array(value, dtype=float).shape
        except ValueError:  # rows of several lengths
            size = None
        if size not in sizes:
            raise ValueError(f"{where}.{name} must be a number, [B] or [B][S] like the mask")


def build_fixture() -> dict[str, Any]:
    """The fixture of all methods, as JSON has it."""
    batches = traps()
    cases = [case(method, trap, batches[trap]) for method in METHODS for trap in batches]
    inputs = {trap: batch.inputs for trap, batch in batches.items()}
    return {"version": 1, "tolerance": TOLERANCE, "inputs": inputs, "cases": cases}


def case(method: str, trap: str, batch: Batch) -> dict[str, Any]:
    """What the code here computes of a batch."""
    algorithm, lengths = build(method), [sum(row) for row in batch.inputs["mask"]]
    got = {k: _to_lists(v) for k, v in compute(method, {}, batch.inputs).items()}
    signals = {k: got.pop(k) for k in {*algorithm.per_token, "low", "high"} & {*got}}
    counts = {"sequences": sum(length > 0 for length in lengths), "tokens": sum(lengths)}
    counts |= {"rows": len(lengths), "pieces": len(batch.pieces or [0])}
    return {
        "name": f"{method}-{trap}",
        "method": method,
        "trap": trap,
        "params": algorithm.base.params.model_dump(),
        "inputs": trap,
        "signals": signals,
        "counts": counts,
        "pieces": batch.pieces,
        "expected": got,
    }


def _to_lists(values: Tensor) -> Any:
    """Of twelve digits, so that the last bits of a processor do not matter."""
    return np.vectorize(lambda x: float(f"{x:.12g}"))(values).tolist()


def write(folder: Path) -> None:
    """cases.json, a case a line; its JSON Schema; README.md and the runner conform.py."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(build_fixture(), allow_nan=False, sort_keys=True)
    replace(folder / "cases.json", text.replace('{"counts"', '\n{"counts"') + "\n")
    replace(folder / "cases.schema.json", json.dumps(Fixture.model_json_schema(), indent=1) + "\n")
    for name in ("README.md", "conform.py"):
        shutil.copy(Path(__file__).with_name(name), folder)


def read(folder: Path) -> dict[str, Any]:
    """The fixture of a folder. Raises ValueError where it is not of the shape; OSError."""
    return read_object(folder / "cases.json", Fixture)


def run(
    function: Callable[..., Any], fixture: dict[str, Any], method: str = "", trap: str = ""
) -> list[dict[str, Any]]:
    """Method, trap, verdict and detail (see `judged`) of each case; ValueError where none is."""
    rows, asked = [], {"method": method, "trap": trap}
    for key, name in asked.items():
        known = sorted({case[key] for case in fixture["cases"]})
        if name and name not in known:
            raise ValueError(f"{key} {name!r} is unknown{did_you_mean(name, known)}")
    for case in fixture["cases"]:
        if method in ("", case["method"]) and trap in ("", case["trap"]):
            inputs = fixture["inputs"][case["inputs"]]
            verdict, detail = judge(function, case, inputs, fixture["tolerance"])
            row = {"method": case["method"], "trap": case["trap"], "verdict": verdict}
            rows.append(row | {"detail": detail})
    if not rows:
        raise ValueError(f"{method} has no case in {trap}")
    return rows

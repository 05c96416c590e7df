"""Which cause `nemo-algos mismatch` names where one is planted: the matrix of docs/mismatch.md.

    uv run benchmarks/mismatch_causes.py --seeds 11,12

Every model x seed x case of tests/lab/mismatch/plant.py x strength, and clean runs; with every
optional field, and with none.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lab" / "mismatch"))

import plant
import toys
from sides import Toy

from nemo_algos.engines.mismatch.dump import Dump
from nemo_algos.lab.mismatch.verdict import diagnose

MODELS = ("countdown", "llama", "qwen", "mixtral")
OPTIONAL = {"entropy": None, "prompt_length": None, "weights_version": None}


def dumps(toy: Toy, clean: int) -> Iterator[tuple[str, str, int, Dump]]:
    """Cause, case, strength and the dump."""
    for cause, cases in plant.CASES.items():
        for case in cases:
            for strength in range(3):
                yield cause, case.__name__, strength, case(toy, strength)
    for i in range(clean):
        yield "clean", "clean", i % 3, plant.clean(toy, i % 3)


def main(
    models: Annotated[str, typer.Option(help="of " + ",".join(MODELS))] = ",".join(MODELS),
    seeds: Annotated[str, typer.Option(help="such as 11,12")] = "11,12",
    clean: Annotated[int, typer.Option(help="clean runs of each model and seed")] = 12,
    missed: Annotated[bool, typer.Option(help="list what is named wrong")] = False,
) -> None:
    """Plant, name, count."""
    torch.set_num_threads(1)
    named, bare, right = Counter(), Counter(), Counter()
    for model in models.split(","):
        for seed in map(int, seeds.split(",")):
            toy = toys.countdown(seed=seed) if model == "countdown" else toys.taught(model, seed)
            for cause, case, strength, dump in dumps(toy, clean):
                verdict = diagnose([dump]).name
                named[cause, verdict] += 1
                bare[cause, diagnose([replace(dump, **OPTIONAL)]).name] += 1
                right[model, verdict == cause] += cause != "clean"
                if missed and verdict != cause:
                    print(f"{model:10} {seed:3} {cause:12} {case:22} {strength} -> {verdict}")
    for model in models.split(","):
        print(f"{model}: {right[model, True]} of {right[model, True] + right[model, False]}")
    show("with every optional field", named)
    show("without any", bare)


def show(title: str, counts: Counter[tuple[str, str]]) -> None:
    """A row for what is planted, a column for what is named."""
    rows = list(dict.fromkeys(planted for planted, _ in counts))
    columns = [*rows, *sorted({verdict for _, verdict in counts} - {*rows})]
    table = Table("planted", *columns, title=title)
    for row in rows:
        table.add_row(row, *(str(counts[row, column] or "") for column in columns))
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)

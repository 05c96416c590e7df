"""The command `nemo-algos problems`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nemo_algos.jsonl import replace
from nemo_algos.terminal import echo


def problems(
    name: Annotated[str, typer.Argument(help="name of the benchmark, such as apps")],
    data: Annotated[str, typer.Argument(help="its file or folder, or `hub` to download")],
    file: Annotated[Path, typer.Argument(help="output file, .jsonl")],
    databases: Annotated[str, typer.Option(help="folder of the SQLite databases")] = "",
) -> None:
    """Write a benchmark's problems as rows to train on, in either engine.

    Of each its prompt under `problem`, and under `answer` what its verifier is given.
    """
    from nemo_algos.lab.evals.benchmarks import load  # other commands' help needs none of it

    loaded = load(name, data, databases=databases)
    if any(p.images for p in loaded.problems):
        reason = "which training rows cannot contain"
        raise ValueError(f"{name} has images, {reason}. Train on the benchmark's file directly.")
    rows = (
        {"id": p.id, **p.info, "problem": p.prompt, "answer": p.answer} for p in loaded.problems
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, "".join(json.dumps(row) + "\n" for row in rows))
    echo(f"{file}: {len(loaded.problems)} problems from {loaded.source}")
    for what, number in sorted(loaded.counts.items()):
        echo(f"{number} {what}")
    asked = loaded.benchmark
    echo(f"verifier {asked.verifier}, deadline {asked.deadline:g}")

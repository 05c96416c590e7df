"""Gold answers of the real benchmark files against the verifiers, and what the loaders counted.

    uv run benchmarks/benchmark_golds.py FOLDER [NAME...]

FOLDER holds the files below. Of mathematics and choices, every gold is given as `\\boxed{gold}`,
and a wrong answer: the next problem's gold where it differs, the next letter, the other of yes and
no. Of code the reference solution is run. Of SQL the files have no databases: empty stand-ins show
the counts alone.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.lab.evals.benchmarks import Loaded, load

FILES = {
    "math500": "math500.jsonl",
    "amc23": "amc23.jsonl",
    "aime24": "aime24.jsonl",
    "aime25": "aime25.jsonl",
    "minerva_math": "minerva_math.jsonl",
    "olympiadbench": "olympiadbench.jsonl",
    "gsm8k": "gsm8k_test.jsonl",
    "math": "math_test_5000.jsonl",
    "acpbench_bool": "acpbench",
    "acpbench_mcq": "acpbench",
    "humaneval": "humaneval.jsonl",
    "mbpp": "mbpp.jsonl",
    "spider": "spider_dev.json",
    "bird": "bird_dev.json",
}
REFERENCE = {"humaneval": ("prompt", "canonical_solution"), "mbpp": ("code",)}


def rejected(loaded: Loaded, responses: list[str], answers: list[str]) -> list[int]:
    """Places of the responses that the benchmark's verifier does not take."""
    benchmark = loaded.benchmark
    with VerifierPool(benchmark.verifier, workers=2, deadline=benchmark.deadline) as pool:
        verdicts = pool.score(responses, answers)
    return [i for i, verdict in enumerate(verdicts) if verdict.reward < 1]


def wrong(answers: list[str], i: int) -> str:
    """The other of yes and no, the next letter, or the next problem's gold."""
    answer = answers[i]
    if answer in ("yes", "no"):
        return "no" if answer == "yes" else "yes"
    if len(answer) == 1 and answer in "ABCD":
        return "ABCD"[("ABCD".index(answer) + 1) % 4]
    return answers[(i + 1) % len(answers)]


def solutions(path: Path, loaded: Loaded) -> list[str]:
    """The reference solution of each problem as a response."""
    keys = REFERENCE[loaded.benchmark.name]
    rows: list[dict[str, Any]] = [json.loads(x) for x in path.read_text().split("\n") if x.strip()]
    code = {str(row["task_id"]): "".join(row[key] for key in keys) for row in rows}
    return [f"```python\n{code[problem.id]}\n```" for problem in loaded.problems]


def stand_ins(path: Path, folder: str) -> None:
    """A database with one table for each db_id of the file."""
    for name in {row["db_id"] for row in json.loads(path.read_text())}:
        (Path(folder) / name).mkdir()
        with sqlite3.connect(Path(folder) / name / f"{name}.sqlite") as database:
            database.execute("CREATE TABLE stand_in (x)")


def check(name: str, path: Path, databases: str) -> None:
    """Print one benchmark's counts and verdicts."""
    loaded = load(name, str(path), databases=databases)
    answers = [problem.answer for problem in loaded.problems]
    typer.echo(f"{name}: {len(answers)} problems, {loaded.source}")
    for trap, number in sorted(loaded.counts.items()):
        typer.echo(f"    {number:5} {trap}")
    if name in REFERENCE:
        bad = rejected(loaded, solutions(path, loaded), answers)
        typer.echo(f"    {len(bad):5} reference solutions rejected")
    elif not databases:
        bad = rejected(loaded, [f"\\boxed{{{answer}}}" for answer in answers], answers)
        other = [wrong(answers, i) for i in range(len(answers))]
        differ = [i for i, answer in enumerate(other) if answer != answers[i]]
        boxes, golds = [f"\\boxed{{{other[i]}}}" for i in differ], [answers[i] for i in differ]
        accepted = set(range(len(differ))) - set(rejected(loaded, boxes, golds))
        typer.echo(f"    {len(bad):5} golds rejected")
        typer.echo(f"    {len(accepted):5} wrong answers accepted, of {len(differ)}")
        for i in sorted(accepted)[:5]:
            typer.echo(f"          {boxes[i]} for {golds[i]}")
    else:
        return
    for i in bad[:10]:
        typer.echo(f"          {loaded.problems[i].id}: {answers[i][:120]}")


def main(
    folder: Annotated[Path, typer.Argument(help="the benchmark files")],
    names: Annotated[list[str] | None, typer.Argument(help="of benchmarks; all of them")] = None,
) -> None:
    for name in names or FILES:
        path = folder / FILES[name]
        with tempfile.TemporaryDirectory() as databases:
            sql = name in ("spider", "bird")
            if sql:
                stand_ins(path, databases)
            check(name, path, databases if sql else "")


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

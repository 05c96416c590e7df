"""Ask `nemo-algos mismatch` about the planted dumps, with the trainer's weights and without.

uv run benchmarks/mismatch/score.py FOLDER [--only PREFIX] [--out ANSWERS.json]
"""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_algos.cli import app
from nemo_algos.terminal import echo

# importing torch and transformers takes longer than most answers
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["nemo_algos.lab.mismatch.examination", "transformers.modeling_utils"]
)
OUTCOMES = ("right", "part", "wrong", "unknown", "error")
SILENT = ("unknown", "few")


def judge(truth: dict[str, Any], answer: dict[str, Any]) -> tuple[str, bool]:
    """The outcome, and whether the parameters of what was named are right too.

    right: every cause named, and no other; part: one of two, and no other; wrong: another name, or
    a clean run for a fault; unknown: no name, or a clean run for a fault below the noise.
    """
    verdict = answer.get("verdict", "error")
    if verdict == "error":
        return "error", False
    if verdict in truth["also"]:
        return "right", True
    if verdict in SILENT:
        return "unknown", False
    named = answer.get("causes") or [{"name": verdict}]
    pairs = [(said, _planted(truth, said["name"])) for said in named]
    if not all(cause for _, cause in pairs):
        missed = truth["faint"] and verdict == "clean"
        return ("unknown" if missed else "wrong"), False
    found = [cause for cause in truth["causes"] if any(cause is planted for _, planted in pairs)]
    exact = all(agrees(cause["parameters"], said.get("parameter") or {}) for said, cause in pairs)
    return ("right" if len(found) == len(truth["causes"]) else "part"), exact


def _planted(truth: dict[str, Any], name: str) -> Any:
    return next((cause for cause in truth["causes"] if name in cause["names"]), None)


def agrees(expected: dict[str, Any], given: dict[str, Any]) -> bool:
    """Every expected parameter is there; the only one may have another key."""
    alone = list(given.values()) if len(expected) == 1 else []
    return all(
        any(_fits(rule, value) for value in ([given[key]] if key in given else alone))
        for key, rule in expected.items()
    )


def _fits(rule: dict[str, Any], value: Any) -> bool:
    """near [value, tolerance], one of `any`, or half of `all` and as few others."""
    if "near" in rule:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value - rule["near"][0]) <= rule["near"][1] + 1e-9
    if "any" in rule:
        said = _last(value)
        return any(said.startswith(_last(wanted)) for wanted in rule["any"])
    if isinstance(rule["all"][0], str):
        return all(wanted in str(value) for wanted in rule["all"])
    said, wanted = set(value if isinstance(value, list) else [value]), set(rule["all"])
    return len(said & wanted) >= len(said | wanted) / 2


def _last(value: Any) -> str:
    """The last part of a path, a version without its v."""
    return str(value).rstrip("/").rpartition("/")[2].removeprefix("v")


def ask(file: Path, truth: dict[str, Any], model: bool) -> dict[str, Any]:
    """The command's answer as JSON; {"verdict": "error"} where it fails."""
    world = file.parent
    arguments = ["mismatch", str(file), "--json"]
    if model:
        arguments += ["--model", str(world / "model")]
        for folder in sorted((world / "previous").iterdir()):
            arguments += ["--previous", str(folder)]
        arguments += ["--adapter", str(world / "adapter")] if truth["adapter"] else []
    with ProcessPoolExecutor(1, PROCESSES) as process:
        printed, errors = process.submit(_printed, arguments).result()
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        return {"verdict": "error", "text": (errors or printed)[-300:]}


def _printed(arguments: list[str]) -> tuple[str, str]:
    """What the command prints, and its errors."""
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors), suppress(SystemExit):
        app(arguments)
    return printed.getvalue(), errors.getvalue()


def said(answer: dict[str, Any]) -> str:
    """The names and parameters of an answer, in a few words."""
    causes = answer.get("causes") or []
    words = [f"{c['name']} {c.get('parameter') or ''}".strip() for c in causes]
    return " + ".join(words) or str(answer.get("verdict")) + " " + answer.get("text", "")[-60:]


def report(rows: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    """A line a kind, and the sums: of kinds above the noise, below it, and of clean runs."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for file, truth, answer in rows:
        outcome, exact = judge(truth, answer)
        kind = (
            "fault" if truth["causes"] else "unclaimed" if "unknown" in truth["also"] else "clean"
        )
        kind = "faint" if truth["faint"] else kind
        sums[kind].update([outcome, *(["exact"] if exact and outcome == "right" else [])])
        echo(f"{outcome:8}{'=' if exact else ' '} {kind:9} {file:60} {said(answer)}")
    for kind, counts in sums.items():
        total = sum(counts[name] for name in OUTCOMES)
        parts = ", ".join(f"{name} {counts[name]}" for name in OUTCOMES if counts[name])
        echo(f"{kind}: {total} dumps: {parts}; with its parameters {counts['exact']}")


def main(
    folder: Path,
    only: Annotated[str, typer.Option(help="WORLD or WORLD/KIND to begin with.")] = "",
    model: Annotated[bool | None, typer.Option(help="Only with the weights, or without.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the answers as JSON.")] = None,
) -> None:
    """Print what was named right, wrong and not at all."""
    facts = json.loads((folder / "truth.json").read_text())
    for given in (True, False) if model is None else (model,):
        echo(f"\n{'with' if given else 'without'} --model")
        files = [file for file in sorted(facts) if file.startswith(only)]
        rows = [(file, facts[file], ask(folder / file, facts[file], given)) for file in files]
        report(rows)
        if out:
            name = out.with_stem(f"{out.stem}_{'with' if given else 'without'}")
            name.write_text(json.dumps({file: answer for file, _, answer in rows}, indent=1) + "\n")


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

"""The data of the case browser: problems with some responses of each run."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from nemo_algos.jsonl import JsonObject, read_lines, read_object
from nemo_algos.lab.evals.benchmarks import EXTRACTORS, AnswerOf
from nemo_algos.lab.evals.problem import RIGHT
from nemo_algos.lab.evals.records import EvalManifest, GenerationLine, ProblemLine, VerdictLine
from nemo_algos.lab.report.numbers import format_number
from nemo_algos.lab.report.runs import Group, LoadedRun

BUDGET = 4_000_000  # bytes of JSON, of all benchmarks
# of a benchmark, of a problem and run, characters
PROBLEMS = 200
RESPONSES = 8
LONGEST = 6000
Places = dict[str, dict[int, dict[str, Any]]]  # by problem id and sample


def cases(groups: Sequence[Group]) -> dict[str, Any]:
    """{"runs": [{label, color}], "benchmarks": [{name, note, problems}]}."""
    runs = []
    labels = []
    names: dict[str, None] = {}  # in order, each once
    for group in groups:
        for run in group.runs:
            if run.eval_folders:
                runs.append(run)
                labels.append({"label": run.label, "color": group.color})
                names |= dict.fromkeys(run.eval_folders)
    benchmarks = []
    for name in names:
        benchmark = _benchmark(name, runs, BUDGET // len(names))
        if benchmark["problems"]:
            benchmarks.append(benchmark)
    return {"runs": labels, "benchmarks": benchmarks}


def _benchmark(name: str, runs: Sequence[LoadedRun], budget: int) -> dict[str, Any]:
    ids: dict[str, None] = {}  # in order, each once
    samples = 0
    for run in runs:
        if name in run.evals:
            ids |= dict.fromkeys(run.evals[name].get("ids", []))
            samples = max(samples, run.evals[name]["samples"])
    chosen = spread([*ids], PROBLEMS)
    stored = [Stored.read(run.eval_folders.get(name), chosen) for run in runs]
    problems = {}
    size = 0
    for problem in chosen:
        case = _case(problem, stored)
        size += len(json.dumps(case))
        if problems and size > budget:
            break
        problems[problem] = case
    note = f"{len(problems)} of {len(ids)} problems"
    if samples > RESPONSES:
        note += f", up to {RESPONSES} of {samples} responses of each run"
    return {"name": name, "note": note, "problems": [problems[i] for i in ids if i in problems]}


def spread(ids: Sequence[str], number: int) -> list[str]:
    """Up to `number` ids evenly over the list, so that any first part of them is spread too."""
    number = min(number, len(ids))
    even = [ids[i * len(ids) // number] for i in range(number)]
    in_turn = []
    for offset in range(8):
        in_turn += even[offset::8]
    return in_turn


@dataclass
class Stored:
    """A run's chosen problems by id, every verdict on them, and the responses that are shown."""

    problems: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: Places = field(default_factory=dict)
    responses: Places = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | None, chosen: Sequence[str]) -> Self:
        """Nothing where there is no folder; where a line was stored twice the last one counts."""
        if folder is None:
            return cls()
        # samples beyond the manifest's number are of an earlier evaluation with more
        manifest = read_object(_there(folder / "manifest.json"), EvalManifest)
        every = dict.fromkeys(chosen, range(manifest["sampling"]["samples"]))
        rows = read_lines(_there(folder / "problems.jsonl"), ProblemLine)
        stored = cls({row["id"]: row for row in rows if row["id"] in every})
        for row in _at(every, folder / "verdicts.jsonl", VerdictLine):
            stored.verdicts.setdefault(row["problem"], {})[row["sample"]] = row
        wanted = {problem: pick_samples(verdicts) for problem, verdicts in stored.verdicts.items()}
        answer_of = EXTRACTORS.get(manifest.get("answers", ""))
        for row in _at(wanted, folder / "generations.jsonl", GenerationLine):
            problem = row["problem"]
            sample = row["sample"]
            shown_as = _response(row, stored.verdicts[problem][sample], answer_of)
            stored.responses.setdefault(problem, {})[sample] = shown_as
        return stored


def _at(places: Mapping[str, Container[int]], file: Path, shape: type[JsonObject]) -> Iterator[Any]:
    rows = read_lines(_there(file), shape)
    return (row for row in rows if row["sample"] in places.get(row["problem"], ()))


def _there(file: Path) -> Path:
    if not file.exists():
        raise ValueError(f"{file} is missing. Run `nemo-algos eval` again.")
    return file


def pick_samples(verdicts: dict[int, dict[str, Any]]) -> set[int]:
    """Samples of a problem to show: right and wrong ones and those without a verdict in turn."""
    kinds: dict[str, list[int]] = {"right": [], "wrong": [], "other": []}
    for sample in sorted(verdicts):
        kinds.get(judgement(verdicts[sample]), kinds["other"]).append(sample)
    turns = chain.from_iterable(zip_longest(*kinds.values()))
    samples = [sample for sample in turns if sample is not None]
    return set(samples[:RESPONSES])


def judgement(verdict: dict[str, Any]) -> str:
    """right, wrong, or why there is no verdict."""
    if verdict["status"] != "ok":
        return verdict["status"]
    if verdict["reward"] >= RIGHT:
        return "right"
    return "wrong"


def _response(
    generation: dict[str, Any], verdict: dict[str, Any], answer_of: AnswerOf | None
) -> dict[str, Any]:
    text = generation["response"]
    answer = ""
    if answer_of:
        answer = answer_of(text) or ""
    tokens = ""
    if generation["tokens"] >= 0:
        tokens = format_number(generation["tokens"])
    return {
        "sample": generation["sample"],
        "text": shorten(text),
        "answer": shorten(answer, 200),
        "verdict": judgement(verdict),
        "detail": shorten(verdict["detail"]),
        "reward": format_number(verdict["reward"]),
        "tokens": tokens,
        "cut": generation["finish"] == "length",
    }


def _case(problem: str, stored: Sequence[Stored]) -> dict[str, Any]:
    row: dict[str, Any] = next((s.problems[problem] for s in stored if problem in s.problems), {})
    runs = []
    for of_run in stored:
        verdicts = of_run.verdicts.get(problem, {}).values()
        right = sum(judgement(verdict) == "right" for verdict in verdicts)
        responses = sorted(of_run.responses.get(problem, {}).values(), key=itemgetter("sample"))
        runs.append({"right": right, "of": len(verdicts), "responses": responses})
    info = {}
    for k, v in (row.get("info") or {}).items():
        info[str(k)] = shorten(str(v), 200)
    return {
        "id": problem,
        "prompt": shorten(str(row.get("prompt", ""))),
        "answer": shorten(str(row.get("answer", ""))),
        "info": info,
        "runs": runs,
    }


def shorten(text: str, longest: int = LONGEST) -> str:
    """Both ends of a long text, and how much is left out between them."""
    if len(text) <= longest:
        return text
    left_out = len(text) - longest
    ends = text[: longest // 2], text[-(longest - longest // 2) :]
    return f"\n[... {left_out} characters left out ...]\n".join(ends)

"""The data of the case browser: problems with some responses of each run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nemo_algos.evals.report.groups import Group
from nemo_algos.evals.report.numbers import shown
from nemo_algos.evals.report.runs import Run

BUDGET = 4_000_000  # bytes of JSON, of all benchmarks
PROBLEMS, RESPONSES, LONGEST = 200, 8, 6000  # of a benchmark, of a problem and run, characters
Places = dict[str, dict[int, dict[str, Any]]]  # by problem id and sample


def cases(groups: Sequence[Group]) -> dict[str, Any]:
    """{"runs": [{label, color}], "benchmarks": [{name, note, problems}]}."""
    colored = [(g.color, run) for g in groups for run in g.runs if run.eval_folders]
    names = list(dict.fromkeys(name for _, run in colored for name in run.eval_folders))
    runs = [run for _, run in colored]
    made = [_benchmark(name, runs, BUDGET // len(names)) for name in names]
    labels = [{"label": run.label, "color": color} for color, run in colored]
    return {"runs": labels, "benchmarks": [b for b in made if b["problems"]]}


def _benchmark(name: str, runs: Sequence[Run], budget: int) -> dict[str, Any]:
    ids = list(dict.fromkeys(i for run in runs for i in run.evals.get(name, {}).get("ids", [])))
    chosen = spread(ids, PROBLEMS)
    stored = [Stored.read(run.eval_folders.get(name), set(chosen)) for run in runs]
    problems, size = {}, 0
    for problem in chosen:
        case = _case(problem, stored)
        size += len(json.dumps(case))
        if size > budget:
            break
        problems[problem] = case
    samples = max(run.evals[name]["samples"] for run in runs if name in run.evals)
    note = f"{len(problems)} of {len(ids)} problems"
    if samples > RESPONSES:
        note += f", up to {RESPONSES} of {samples} responses of each run"
    return {"name": name, "note": note, "problems": [problems[i] for i in ids if i in problems]}


def spread(ids: Sequence[str], number: int) -> list[str]:
    """Up to `number` ids evenly over the list, so that any first part of them is spread too."""
    step = max(len(ids) // number, 1)
    even = list(ids[::step])[:number]
    return [even[i] for offset in range(8) for i in range(offset, len(even), 8)]


class Stored:
    """What a run's folder holds of the chosen problems."""

    def __init__(self, problems: dict[str, Any], generations: Places, verdicts: Places) -> None:
        self.problems, self.generations, self.verdicts = problems, generations, verdicts
        self.answer_of: Callable[[str], str | None] | None = None

    @staticmethod
    def read(folder: Path | None, chosen: set[str]) -> Stored:
        """Nothing where there is no folder. Of what was stored twice the last counts."""
        if folder is None:
            return Stored({}, {}, {})
        problems = {r["id"]: r for r in stream(folder / "problems.jsonl") if r["id"] in chosen}
        files = (folder / f"{name}.jsonl" for name in ("generations", "verdicts"))
        stored = Stored(problems, *(_by_place(file, chosen) for file in files))
        manifest = json.loads((folder / "manifest.json").read_text())
        stored.answer_of = _ours(manifest.get("answers") or "")
        return stored

    def responses(self, problem: str) -> list[dict[str, Any]]:
        """A problem's, right and wrong ones and those without a verdict in turn."""
        judged, given = self.verdicts.get(problem, {}), self.generations.get(problem, {})
        every = [_response(given[i], judged[i]) for i in sorted(given) if i in judged]
        kinds = {kind: [r for r in every if r["verdict"] == kind] for kind in ("right", "wrong")}
        kinds["other"] = [r for r in every if r["verdict"] not in kinds]
        mixed = [r for turn in zip_longest(*kinds.values()) for r in turn if r]
        shown_ones = sorted(mixed[:RESPONSES], key=lambda r: r["sample"])
        return [self._shown(r) for r in shown_ones]

    def _shown(self, response: dict[str, Any]) -> dict[str, Any]:
        answer = self.answer_of(response["text"]) if self.answer_of else None
        clipped = {k: shortened(response[k]) for k in ("text", "detail")}
        return {**response, **clipped, "answer": shortened(answer or "", 200)}


def _by_place(file: Path, chosen: set[str]) -> Places:
    out: Places = {}
    for row in stream(file):
        if row["problem"] in chosen:
            out.setdefault(row["problem"], {})[row["sample"]] = row
    return out


def _response(generation: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    judged = "right" if verdict["reward"] >= 1 else "wrong"
    return {
        "sample": generation["sample"],
        "text": generation["response"],
        "verdict": judged if verdict["status"] == "ok" else verdict["status"],
        "detail": verdict["detail"],
        "reward": shown(verdict["reward"]),
        "tokens": shown(generation["tokens"]) if generation["tokens"] >= 0 else "",
        "cut": generation["finish"] == "length",
    }


def _case(problem: str, stored: Sequence[Stored]) -> dict[str, Any]:
    row = next((s.problems[problem] for s in stored if problem in s.problems), {})
    runs = []
    for of_run in stored:
        verdicts = of_run.verdicts.get(problem, {}).values()
        right = sum(v["reward"] >= 1 for v in verdicts)
        responses = of_run.responses(problem)
        runs.append({"right": right, "of": len(verdicts), "responses": responses})
    texts = {k: shortened(str(row.get(k, ""))) for k in ("prompt", "answer")}
    info = {str(k): shortened(str(v), 200) for k, v in (row.get("info") or {}).items()}
    return {"id": problem, **texts, "info": info, "runs": runs}


def shortened(text: str, longest: int = LONGEST) -> str:
    """Both ends of a long text, and how much is left out between them."""
    if len(text) <= longest:
        return text
    left_out = len(text) - longest
    ends = text[: longest // 2], text[-(longest - longest // 2) :]
    return f"\n[... {left_out} characters left out ...]\n".join(ends)


def stream(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file that may be large; a last line cut by a kill is dropped. Raises
    ValueError for another broken line, or where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            for i, line in enumerate(file, 1):
                if line.endswith("\n"):
                    yield _object(line, f"{path} line {i}")
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: run `nemo-algos eval` again") from None


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}): remove the line") from None


def _ours(name: str) -> Callable[[str], str | None] | None:
    """The extractor of "module:function"; only ours, as a folder may come from anyone."""
    module, _, function = name.partition(":")
    if not module.startswith("nemo_algos."):
        return None
    return getattr(import_module(module), function, None)

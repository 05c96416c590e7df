"""A stored evaluation: responses and verdicts as JSONL, appended as they come, each with the hash
of what it belongs to.

    manifest.json      model, benchmark, sampling, verifier, counts, versions
    problems.jsonl     id, prompt, answer, images, info
    generations.jsonl  problem, sample, response, tokens, finish, key
    verdicts.jsonl     problem, sample, reward, status, detail, of

`key` hashes model, prompt and sampling; `of` hashes response, answer and verifier. A line with a
hash of something else is as good as absent, so a changed gold is verified anew without sampling.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nemo_algos.evals.problem import Evaluation, Problem
from nemo_algos.rewards import Verdict


class Generation(NamedTuple):
    """One response. tokens: its length, -1 unknown; finish: stop, or length where it was cut."""

    problem: str
    sample: int
    response: str
    tokens: int
    finish: str


Place = tuple[str, int]  # problem id, sample


class Store:
    """The folder of one model on one benchmark."""

    def __init__(self, folder: Path, manifest: dict[str, Any], problems: Sequence[Problem]) -> None:
        self.folder, self.manifest, self.problems = folder, manifest, list(problems)
        self.keys = {p.id: self._key(p) for p in self.problems}

    @classmethod
    def opened(cls, folder: Path, manifest: dict[str, Any], problems: Sequence[Problem]) -> Store:
        """The folder made ready to be added to.

        Raises ValueError where it holds another model's, benchmark's or sampling's responses; more
        `samples`, another verifier, other problems are welcome.
        """
        _refuse_another(folder, manifest)
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "manifest.json", json.dumps(manifest, indent=2))
        _replace(folder / "problems.jsonl", _lines(asdict(p) for p in problems))
        for name in ("generations.jsonl", "verdicts.jsonl"):
            _cut_broken_end(folder / name)
        return cls(folder, manifest, problems)

    def _key(self, problem: Problem) -> str:
        sampling = {k: v for k, v in self.manifest["sampling"].items() if k != "samples"}
        return _hash([self.manifest["model"], sampling, problem.prompt, list(problem.images)])

    @cached_property
    def generations(self) -> dict[Place, Generation]:
        """Those stored for these problems."""
        rows = read_lines(self.folder / "generations.jsonl")
        fields = Generation._fields
        return {
            (row["problem"], row["sample"]): Generation(*(row[f] for f in fields))
            for row in rows
            if self.keys.get(row["problem"]) == row["key"]
        }

    @cached_property
    def verdicts(self) -> dict[Place, tuple[str, Verdict]]:
        """Those stored, with what each is of."""
        rows = read_lines(self.folder / "verdicts.jsonl")
        return {
            (row["problem"], row["sample"]): (
                row["of"],
                Verdict(row["reward"], row["status"], row["detail"]),
            )
            for row in rows
        }

    def missing(self) -> list[tuple[Problem, list[int]]]:
        """Each problem with the samples that it still lacks."""
        every = range(self.manifest["sampling"]["samples"])
        lacking = (
            (p, [i for i in every if (p.id, i) not in self.generations]) for p in self.problems
        )
        return [(p, samples) for p, samples in lacking if samples]

    def unverified(self) -> list[tuple[Problem, Generation]]:
        """Responses without a verdict on this answer by this verifier."""
        by_id = {p.id: p for p in self.problems}
        pairs = ((by_id[g.problem], g) for g in self.generations.values())
        return [(p, g) for p, g in pairs if self._verdict(p, g) is None]

    def _verdict(self, problem: Problem, generation: Generation) -> Verdict | None:
        of, verdict = self.verdicts.get((problem.id, generation.sample), ("", None))
        return verdict if of == self._of(problem, generation) else None

    def _of(self, problem: Problem, generation: Generation) -> str:
        return _hash([generation.response, problem.answer, self.manifest["verifier"]])

    def add(self, generations: Sequence[Generation]) -> None:
        """Append responses."""
        self.generations.update({(g.problem, g.sample): g for g in generations})
        rows = ({**g._asdict(), "key": self.keys[g.problem]} for g in generations)
        _append(self.folder / "generations.jsonl", rows)

    def judge(self, judged: Iterable[tuple[Problem, Generation, Verdict]]) -> None:
        """Append verdicts."""
        rows = []
        for problem, generation, verdict in judged:
            of = self._of(problem, generation)
            self.verdicts[problem.id, generation.sample] = of, verdict
            place = {"problem": problem.id, "sample": generation.sample}
            rows.append({**place, **asdict(verdict), "of": of})
        _append(self.folder / "verdicts.jsonl", rows)

    def evaluation(self) -> Evaluation:
        """The problems whose samples are all there and judged. Raises ValueError where there is
        none."""
        samples = range(self.manifest["sampling"]["samples"])
        rows = [[self.generations.get((p.id, i)) for i in samples] for p in self.problems]
        whole = [
            (p, [(g, v) for g in row if g and (v := self._verdict(p, g))])
            for p, row in zip(self.problems, rows, strict=True)
        ]
        whole = [(p, row) for p, row in whole if len(row) == len(samples)]
        if not whole:
            raise ValueError(f"{self.folder} has no problem with all its {len(samples)} responses")
        answer_of = _named(self.manifest["answers"])
        return Evaluation(
            benchmark=self.manifest["benchmark"],
            problems=[p for p, _ in whole],
            responses=[[g.response for g, _ in row] for _, row in whole],
            rewards=np.array([[v.reward for _, v in row] for _, row in whole], dtype=np.float64),
            answers=[[answer_of(g.response) for g, _ in row] for _, row in whole]
            if answer_of
            else [],
            tokens=np.array([[g.tokens for g, _ in row] for _, row in whole], dtype=np.int64),
            finished=np.array([[g.finish == "stop" for g, _ in row] for _, row in whole]),
            statuses=Counter(v.status for _, row in whole for _, v in row),
        )


def read(folder: Path) -> tuple[dict[str, Any], Evaluation]:
    """A stored evaluation's manifest and what is complete of it. Raises ValueError."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        rows = read_lines(folder / "problems.jsonl")
        problems = [Problem(**{**row, "images": tuple(row["images"])}) for row in rows]
        store = Store(folder, manifest, problems)
    except (OSError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder} is not a stored evaluation ({why})") from None
    return manifest, store.evaluation()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file, none where there is none; a last line that a kill has cut is
    dropped. Raises ValueError for another broken line."""
    text = path.read_text() if path.exists() else ""
    rows = []
    for i, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path} line {i} is not JSON ({error}): remove the line") from None
    return rows


def _append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with open(path, "a") as file:
        file.write(_lines(rows))


def _cut_broken_end(path: Path) -> None:
    """A kill may have left half a line."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".tmp")
    partial.write_text(text)
    partial.replace(path)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _named(name: str) -> Any:
    """The function of "module:function", None for an empty name."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function) if name else None


def _refuse_another(folder: Path, manifest: dict[str, Any]) -> None:
    path = folder / "manifest.json"
    if not path.exists():
        return
    old, different = json.loads(path.read_text()), []
    for part in ("model", "benchmark", "sampling"):
        pair = [
            {**m[part]} if isinstance(m[part], dict) else {part: m[part]} for m in (old, manifest)
        ]
        for key in dict.fromkeys([*pair[0], *pair[1]]):
            if key != "samples" and pair[0].get(key) != pair[1].get(key):
                different.append(f"{part}.{key}: {pair[0].get(key)} -> {pair[1].get(key)}")
    if different:
        listed = "\n  ".join(different)
        raise ValueError(
            f"{folder} holds another evaluation; set out to another folder:\n  {listed}"
        )

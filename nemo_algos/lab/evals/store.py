"""A stored evaluation: responses and verdicts as JSONL, appended as they come.

    manifest.json      model, benchmark, sampling, verifier, counts, versions
    problems.jsonl     id, prompt, answer, images, info
    generations.jsonl  problem, sample, response, tokens, finish, key, logprobs if asked for
    verdicts.jsonl     problem, sample, reward, status, detail, of

`key` hashes model, prompt, images and sampling; `of` hashes response, prompt, answer and verifier.
A line with another hash counts as absent, so a changed gold is verified anew without sampling.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from nemo_algos.engines.local.manifest import differences
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.function import path_of
from nemo_algos.jsonl import (
    append_lines,
    cut_broken_end,
    lock_folder,
    read_lines,
    read_object,
    refuse_links_out,
    replace,
)
from nemo_algos.lab.evals.problem import REFUSED, URLS, Evaluation, Generation, Problem
from nemo_algos.lab.evals.records import EvalManifest, GenerationLine, VerdictLine

Place = tuple[str, int]  # problem id, sample
# another version of theirs may judge otherwise
JUDGES = ("nemo-algos", "math-verify", "latex2sympy2-extended", "sympy")
AGAIN = {"error", "timeout", "memory"}  # of a busy or broken machine, perhaps: judged again
FINISHED = {"stop": 1.0, "": float("nan")}  # all else: 0


class Store:
    """The folder of one model on one benchmark, ready to be added to; its lock is held.

    Raises ValueError where it holds another model's, benchmark's or sampling's responses; more
    `samples`, another verifier, other problems are welcome.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], problems: Sequence[Problem]) -> None:
        self.folder, self.manifest, self.problems = folder, manifest, list(problems)
        self.lock = self._prepare()
        verifier = manifest["verifier"]
        self.judge_key = [verifier, _sources(verifier), *map(version, JUDGES)]
        belonging = _belonging(manifest)
        self.keys = dict[str, str]()
        for p in self.problems:
            led = [p.before, p.prefix] if p.before or p.prefix else []
            images = [_content(image) for image in p.images]
            self.keys[p.id] = hash_of([belonging, p.prompt, images, *led])

    def _prepare(self) -> IO[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        refuse_links_out(self.folder)
        lock = lock_folder(self.folder, "evaluating into")
        _refuse_another(self.folder, self.manifest)
        replace(self.folder / "manifest.json", json.dumps(self.manifest, indent=2))
        lines = (json.dumps(asdict(p)) + "\n" for p in self.problems)
        replace(self.folder / "problems.jsonl", "".join(lines))
        for name in ("generations.jsonl", "verdicts.jsonl"):
            cut_broken_end(self.folder / name)
        return lock

    @property
    def samples(self) -> int:
        """How many responses each problem is to have."""
        return self.manifest["sampling"]["samples"]

    @cached_property
    def generations(self) -> dict[Place, Generation]:
        """The stored responses that are asked for."""
        stored = dict[Place, Generation]()
        for row in read_lines(self.folder / "generations.jsonl", GenerationLine):
            if row["sample"] < self.samples and self.keys.get(row["problem"]) == row["key"]:
                g = Generation(**{f: row[f] for f in Generation._fields if f in row})
                if not g.refused:  # else it is asked again: the server may be another one now
                    stored[g.problem, g.sample] = g
        return stored

    @cached_property
    def verdicts(self) -> dict[Place, tuple[str, Verdict]]:
        """The stored verdicts, each with the hash of what it judges."""
        stored = dict[Place, tuple[str, Verdict]]()
        for row in read_lines(self.folder / "verdicts.jsonl", VerdictLine):
            verdict = Verdict(row["reward"], row["status"], row["detail"])
            stored[row["problem"], row["sample"]] = row["of"], verdict
        return stored

    def missing(self) -> list[tuple[Problem, list[int]]]:
        """Each problem with the samples that it still lacks."""
        lacking = list[tuple[Problem, list[int]]]()
        for p in self.problems:
            samples = [i for i in range(self.samples) if (p.id, i) not in self.generations]
            if samples:
                lacking.append((p, samples))
        return lacking

    def judged(self) -> Iterator[tuple[Problem, Generation, Verdict | None]]:
        """Every response with its verdict on this answer by this verifier, if it has one."""
        by_id = {p.id: p for p in self.problems}
        for g in self.generations.values():
            yield by_id[g.problem], g, self._verdict(by_id[g.problem], g)

    def unverified(self) -> list[tuple[Problem, Generation]]:
        """Responses without a verdict, or with one that another run may change."""
        return [(p, g) for p, g, v in self.judged() if v is None or v.status in AGAIN]

    def _verdict(self, problem: Problem, generation: Generation) -> Verdict | None:
        judged, verdict = self.verdicts.get((problem.id, generation.sample), ("", None))
        if judged == self._judged(problem, generation):
            return verdict
        return None

    def _judged(self, problem: Problem, generation: Generation) -> str:
        return hash_of([generation.response, problem.prompt, problem.answer, self.judge_key])

    def add(self, generations: Sequence[Generation]) -> None:
        self.generations.update({(g.problem, g.sample): g for g in generations})
        rows = list[dict[str, Any]]()
        for g in generations:
            known = {k: v for k, v in g._asdict().items() if v is not None}
            rows.append({**known, "key": self.keys[g.problem]})
        append_lines(self.folder / "generations.jsonl", rows)

    def judge(self, judged: Iterable[tuple[Problem, Generation, Verdict]]) -> None:
        rows = []
        for problem, generation, verdict in judged:
            key = self._judged(problem, generation)
            self.verdicts[problem.id, generation.sample] = key, verdict
            row = {
                "problem": problem.id,
                "sample": generation.sample,
                **{k: getattr(verdict, k) for k in ("reward", "status", "detail")},
                "of": key,
            }
            rows.append(row)
        append_lines(self.folder / "verdicts.jsonl", rows)

    def evaluation(self, answer_of: Callable[[str], str | None] | None) -> Evaluation:
        """The problems whose samples are all judged. Raises ValueError where there is none."""
        problems = list[Problem]()
        responses = list[list[str]]()
        answers = []
        tokens = []
        finished = []
        rewards = []
        statuses = Counter[str]()
        for problem in self.problems:
            drawn, judged = self._complete(problem)
            if len(judged) != self.samples:
                continue
            problems.append(problem)
            responses.append([generation.response for generation in drawn])
            tokens.append([generation.tokens for generation in drawn])
            finished.append([FINISHED.get(generation.finish, 0.0) for generation in drawn])
            rewards.append([verdict.reward for verdict in judged])
            statuses.update(verdict.status for verdict in judged)
            if answer_of:
                answers.append(list(map(answer_of, responses[-1])))
        if not problems:
            raise ValueError(
                f"{self.folder}: no problem has all {self.samples} responses. Run the evaluation "
                "again."
            )
        return Evaluation(
            benchmark=self.manifest["benchmark"],
            problems=problems,
            responses=responses,
            rewards=np.array(rewards, dtype=np.float64),
            answers=answers,
            tokens=np.array(tokens, dtype=np.int64),
            finished=np.array(finished),
            statuses=statuses,
        )

    def _complete(self, problem: Problem) -> tuple[list[Generation], list[Verdict]]:
        """Of a problem the responses that have a verdict, and these."""
        generations = []
        verdicts = []
        for sample in range(self.samples):
            generation = self.generations.get((problem.id, sample))
            verdict = generation and self._verdict(problem, generation)
            if generation and verdict:
                generations.append(generation)
                verdicts.append(verdict)
        return generations, verdicts


def hash_of(value: object) -> str:
    """16 hexadecimal digits of the SHA-256 of its JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _sources(verifier: str) -> str:
    """The hash of the Python files beside a "module:function", or its package; empty for none."""
    module = path_of(verifier).partition(":")[0] if ":" in path_of(verifier) else ""
    package = module.rpartition(".")[0]
    spec = find_spec(package or module) if module else None
    if not (spec and spec.origin and spec.origin.endswith(".py")):
        return ""
    folder = Path(spec.origin).parent
    files = folder.rglob("*.py") if package else folder.glob("*.py")
    return hash_of({str(f.relative_to(folder)): f.read_bytes().hex() for f in sorted(files)})


def _content(image: str) -> str:
    """The hash of a picture's file; a URL, or a file that is not there, is itself."""
    if image.startswith(URLS) or not Path(image).is_file():
        return image
    return hash_of(Path(image).read_bytes().hex())


def _refuse_another(folder: Path, manifest: dict[str, Any]) -> None:
    """A folder that holds no response belongs to no model yet."""
    path = folder / "manifest.json"
    if not path.exists():
        return
    try:
        stored = read_object(path, EvalManifest)
    except ValueError as error:
        raise ValueError(
            f"{path} is not the manifest of an evaluation ({error}). Delete the folder, or set "
            "`out`."
        ) from None
    different = "\n  ".join(map(str, differences(_belonging(stored), _belonging(manifest))))
    rows = read_lines(folder / "generations.jsonl", GenerationLine)
    if different and any(not row["finish"].startswith(REFUSED) for row in rows):
        raise ValueError(
            f"{folder} contains another evaluation. Set `out` to another folder:\n  {different}"
        )


def _belonging(manifest: dict[str, Any]) -> dict[str, Any]:
    """The part of a manifest that the responses depend on."""
    sampling = {k: v for k, v in manifest["sampling"].items() if k != "samples"}
    for key in ("logprobs", "perturbation"):  # as in the manifests of before these keys
        if not sampling.get(key):
            sampling.pop(key, None)
    return {"model": manifest["model"], "benchmark": manifest["benchmark"], "sampling": sampling}

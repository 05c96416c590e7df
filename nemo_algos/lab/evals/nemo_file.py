"""Responses that NeMo-RL's evaluation saved (`eval.save_path`), as a sampler that has them all."""

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from nemo_algos.engines.rewards import Verdict
from nemo_algos.jsonl import JsonObject, read_object
from nemo_algos.lab.evals.benchmarks import BENCHMARKS, Loaded
from nemo_algos.lab.evals.problem import Add, Generation, Problem, Wanted
from nemo_algos.lab.evals.records import LARGEST
from nemo_algos.lab.evals.schema import NemoRLFile

NAME = "evaluation_data.json"
THEIRS = "NeMo-RL's own rewards"


class _Item(JsonObject):
    prompt: Any
    response: str
    reward: Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
    extra_env_info: str


class _Saved(JsonObject):
    evaluation_data: Annotated[list[_Item], Field(min_length=1)]


class ScoredResponse(NamedTuple):
    """One response.

    prompt: as the model read it, chat template included. answer: what the verifier compared with,
    None where the file has none. sample: 0, 1, ... among those of equal prompts.
    """

    prompt: str
    response: str
    reward: float
    sample: int
    answer: str | None


def read(path: str | Path) -> list[ScoredResponse]:
    """The rows in the order of the file.

    path: the folder `save_path`, or its evaluation_data.json. NeMo-RL numbers samples through the
    whole run, and repeats of a prompt follow one another: `ScoredResponse.sample` starts anew for
    each prompt. A prompt that occurs twice in the data set counts as one, with twice the samples.
    Raises ValueError where the file is not there, or not what NeMo-RL writes.
    """
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    if not path.exists():
        raise ValueError(f"{path} does not exist. Name eval.save_path of the NeMo-RL run.")
    try:
        items = read_object(path, _Saved)["evaluation_data"]
    except ValueError as error:
        raise ValueError(f"{error} Perhaps its run was interrupted.") from None
    seen = Counter[str]()
    rows = list[ScoredResponse]()
    for item in items:
        prompt = item["prompt"]
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)  # images: a list of parts
        answer = _answer(item["extra_env_info"])
        reward = float(item["reward"])
        rows.append(ScoredResponse(text, item["response"], reward, seen[text], answer))
        seen[text] += 1
    return rows


def _answer(written: str) -> str | None:
    # NeMo-RL writes str() of the metadata, a dictionary in most environments
    try:
        info = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    answer = info.get("ground_truth") if isinstance(info, dict) else None
    return None if answer is None else str(answer)


class NemoRLResults:
    """A file of responses to some benchmark, with NeMo-RL's prompts and golds.

    Where the file has every gold, the responses are verified by the benchmark's verifier, else
    NeMo-RL's rewards are taken: `verifier` says which. Raises ValueError where the file is broken.
    """

    def __init__(self, model: NemoRLFile) -> None:
        rows = read(model.file)
        ids = dict[str, str]()
        for row in rows:
            ids.setdefault(row.prompt, str(len(ids)))
        self.rows = {(ids[r.prompt], r.sample): r for r in rows}
        self.problems = [Problem(i, p, self.rows[i, 0].answer or "") for p, i in ids.items()]
        self.samples = min(Counter(place[0] for place in self.rows).values())
        self.verifier = None if all(r.answer for r in rows) else THEIRS
        digest = hashlib.sha256(repr(rows).encode(errors="replace")).hexdigest()[:16]
        self.identity: dict[str, Any] = {"engine": "nemo_rl", "responses": digest}
        self.source = Path(model.file).name

    def load(self, name: str) -> Loaded:
        """The problems of the file, as those of a benchmark."""
        return Loaded(BENCHMARKS[name], self.problems, Counter(), self.source)

    def sample(self, wanted: Wanted, add: Add) -> None:
        found = list[Generation]()
        for problem, samples in wanted:
            for i in samples:
                response = self.rows[problem.id, i].response
                found.append(Generation(problem.id, i, response, -1, ""))
        add(found)

    def own_verdicts(
        self, unverified: Iterable[tuple[Problem, Generation]]
    ) -> Iterator[tuple[Problem, Generation, Verdict]]:
        for p, g in unverified:
            yield p, g, Verdict(self.rows[p.id, g.sample].reward, "ok")

    def differs(self, generation: Generation, verdict: Verdict | None) -> bool:
        """Whether a verdict is not NeMo-RL's reward."""
        row = self.rows[generation.problem, generation.sample]
        return verdict is not None and verdict.reward != row.reward

"""Responses that NeMo-RL's evaluation saved, as a sampler that has them all."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemo_algos.evals.benchmarks import BENCHMARKS, Loaded
from nemo_algos.evals.nemo_file import read
from nemo_algos.evals.problem import Problem
from nemo_algos.evals.samplers import Add, Wanted
from nemo_algos.evals.schema import NemoRLFile
from nemo_algos.evals.store import Generation
from nemo_algos.rewards import Verdict

THEIRS = "NeMo-RL's own rewards"


class NemoRLResults:
    """A file of responses to some benchmark, with NeMo-RL's prompts and golds.

    Where the file has every gold, the responses are verified by the benchmark's verifier, else
    NeMo-RL's rewards are taken: `verifier` says which. Raises ValueError where the file is broken.
    """

    def __init__(self, model: NemoRLFile) -> None:
        rows = read(model.file)
        ids = {prompt: str(i) for i, prompt in enumerate(dict.fromkeys(r.prompt for r in rows))}
        self.rows = {(ids[r.prompt], r.sample): r for r in rows}
        self.problems = [Problem(i, p, self.rows[i, 0].answer or "") for p, i in ids.items()]
        self.samples = min(Counter(place[0] for place in self.rows).values())
        self.verifier = None if all(r.answer for r in rows) else THEIRS
        digest = hashlib.sha256(repr(rows).encode(errors="replace")).hexdigest()[:16]
        self.identity: dict[str, Any] = {"engine": "nemo_rl", "responses": digest}
        self.source = Path(model.file).name

    def loaded(self, name: str) -> Loaded:
        """The problems of the file, as those of a benchmark."""
        return Loaded(BENCHMARKS[name], self.problems, Counter(), self.source)

    def sample(self, wanted: Wanted, add: Add) -> None:
        """See Sampler."""
        places = ((p.id, i) for p, samples in wanted for i in samples)
        add([Generation(*place, self.rows[place].response, -1, "") for place in places])

    def judged(
        self, unverified: Iterable[tuple[Problem, Generation]]
    ) -> Iterator[tuple[Problem, Generation, Verdict]]:
        """NeMo-RL's rewards as verdicts."""
        for p, g in unverified:
            yield p, g, Verdict(self.rows[p.id, g.sample].reward, "ok")

    def differs(self, generation: Generation, verdict: Verdict | None) -> bool:
        """Whether a verdict is not NeMo-RL's reward."""
        row = self.rows[generation.problem, generation.sample]
        return verdict is not None and verdict.reward != row.reward

"""Problems with answers from JSONL files, in a model's chat template, scored by a verifier in
killable processes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_algos.config import did_you_mean
from nemo_algos.local.experience import Experience
from nemo_algos.local.hf import chat
from nemo_algos.local.schema import DataSection, Split
from nemo_algos.rewards import Verdict, VerifierPool


@dataclass(frozen=True)
class Problem:
    """The user's question, its token ids as a chat, and the gold answer."""

    question: str
    answer: str
    prompt: list[int]


def read_jsonl(split: Split) -> list[tuple[str, str]]:
    """(problem, answer) of each line; of a GSM8K answer, what follows `####`.

    Raises ValueError with the file and line of the first broken one.
    """
    path = Path(split.data_path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read data_path {path}: {error}") from None
    rows = [
        _row(line, split, f"{path} line {i}") for i, line in enumerate(lines, 1) if line.strip()
    ]
    if not rows:
        raise ValueError(f"{path} holds no problems: one JSON object per line is needed")
    return rows


def _row(line: str, split: Split, where: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object with the keys of a problem")
    for name, key in (("input_key", split.input_key), ("output_key", split.output_key)):
        if key not in row:
            hint = did_you_mean(key, list(row))
            raise ValueError(f"{where} has no key {key!r}{hint}: set {name}")
    problem, answer = (
        "" if row[key] is None else str(row[key]) for key in (split.input_key, split.output_key)
    )
    return problem, answer.rpartition("####")[2].strip()


class MathProblems:
    """A Task over JSONL files. Training goes through the file in a new order every epoch.

    `dropped` counts rows without a problem or a gold answer and prompts longer than
    max_input_seq_length.
    Raises ValueError where a file is broken or nothing is left.
    """

    def __init__(self, data: DataSection, tokenizer: Any, seed: int) -> None:
        assert data.train is not None
        self.data, self.tokenizer, self.seed = data, tokenizer, seed
        self.dropped = self.unverified = 0
        self.train = self._problems(data.train)
        self.validation = self._problems(data.validation) if data.validation else []
        self.pool = VerifierPool(data.verifier, workers=data.verifier_workers)
        self.order = lru_cache(maxsize=2)(self._order)

    def _problems(self, split: Split) -> list[Problem]:
        rows = read_jsonl(split)
        every = [Problem(q, a, self._chat(q)) for q, a in rows]
        longest = self.data.max_input_seq_length or max(len(p.prompt) for p in every)
        kept = [p for p in every if p.question and p.answer and len(p.prompt) <= longest]
        self.dropped += len(every) - len(kept)
        if not kept:
            raise ValueError(
                f"{split.data_path}: every prompt is longer than "
                f"data.max_input_seq_length={longest} tokens "
                "or has an empty answer"
            )
        return kept

    def _chat(self, question: str) -> list[int]:
        said, prefix = (
            text.replace("{problem}", question)
            for text in (self.data.prompt, self.data.answer_prefix)
        )
        return chat(self.tokenizer, said, prefix)

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.train)))
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        return order

    def problems(self, step: int, number: int) -> list[Problem]:
        """See Task."""
        places = (divmod(i, len(self.train)) for i in range(step * number, (step + 1) * number))
        return [self.train[self.order(epoch)[i]] for epoch, i in places]

    def held_out(self, number: int) -> list[Problem]:
        """See Task."""
        return self.validation[:number]

    def prompt(self, problem: Problem) -> list[int]:
        """See Task."""
        return problem.prompt

    def rewards(self, problems: list[Problem], experience: Experience) -> Tensor:
        """See Task. One that the verifier could not judge has reward 0 and counts in
        `unverified`."""
        verdicts = self._verdicts(problems, self._texts(experience), experience)
        return torch.tensor([v.reward for v in verdicts], dtype=torch.float64)

    def solutions(self, problems: list[Problem], experience: Experience) -> list[Any]:
        """See Task. Two right responses are the same solution where their texts are equal."""
        texts = self._texts(experience)
        verdicts = self._verdicts(problems, texts, experience)
        return [t if v.reward > 0 else None for t, v in zip(texts, verdicts, strict=True)]

    def _texts(self, experience: Experience) -> list[str]:
        return self.tokenizer.batch_decode(experience.responses(), skip_special_tokens=True)

    def _verdicts(
        self, problems: list[Problem], texts: list[str], experience: Experience
    ) -> list[Verdict]:
        verdicts = self.pool.score(texts, [problems[i].answer for i in experience.of.tolist()])
        self.unverified = sum(v.status != "ok" for v in verdicts)
        return verdicts

    def close(self) -> None:
        """See Task."""
        self.pool.close()

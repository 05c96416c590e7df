"""APMPO's GPT-based diversity: a model reads the right responses to a problem and says 0 to 3.

judgements.jsonl    problem, answer, of (a hash of what was asked, and of whom)
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_algos.jsonl import append_lines, cut_broken_end, read_lines
from nemo_algos.lab.evals.endpoint import Endpoint
from nemo_algos.lab.evals.problem import Evaluation, Generation, Problem
from nemo_algos.lab.evals.records import JudgementLine
from nemo_algos.lab.evals.schema import Judge, SamplingSection
from nemo_algos.lab.evals.store import hash_of

DIVERSITY = "gpt_diversity"
# APMPO's, appendix K.6; it does not print how the solutions follow.
PROMPT = """\
Given the following set of correct solutions to a math problem, evaluate the diversity of the \
reasoning methods used. Assign a single integer score from 0 to 3 based on the following criteria:
- 0: Solutions use identical logic and phrasing (High Repetition).
- 1: Solutions use the same underlying logic but different phrasing.
- 2: Solutions use slightly different logical steps or intermediate derivations.
- 3: Solutions employ fundamentally different mathematical approaches (e.g., Coordinate Geometry \
vs. Synthetic Geometry, or Induction vs. Direct Proof).
Output only the single numerical score."""
THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def scores(
    evaluation: Evaluation, judge: Judge, folder: Path, say: Callable[[str], object]
) -> NDArray[np.float64]:
    """[P], 0 to 3; nan with fewer than two right responses, and where the answer is no such number.

    What the folder holds already is not asked again. say: told how many answers are lacking.
    Raises ValueError where the server cannot be asked.
    """
    questions = _questions(evaluation)
    sampling = SamplingSection(samples=1)
    endpoint = Endpoint(judge, sampling, say)
    keys = {}
    for p in questions:
        keys[p.id] = hash_of([endpoint.identity, sampling.model_dump(), p.prompt])
    file = folder / "judgements.jsonl"
    answers = _read_stored(file, keys)

    def add(generations: list[Generation]) -> None:
        rows = list[dict[str, str]]()
        for g in generations:
            if not g.refused:
                answers[g.problem] = g.response
                rows.append({"problem": g.problem, "answer": g.response, "of": keys[g.problem]})
        append_lines(file, rows)

    try:
        endpoint.sample([(p, [0]) for p in questions if p.id not in answers], add)
    except ValueError as error:
        raise ValueError(f"metrics.judge: {error}") from None
    found = {problem: score(answer) for problem, answer in answers.items()}
    wrong = sum(value is None for value in found.values())
    if wrong:
        say(f"warning: {wrong} of {len(found)} judgements have no score from 0 to 3; left out")
    lacking = len(questions) - len(found)
    if lacking:
        say(f"warning: the judge refused {lacking} of {len(questions)} questions. Run again.")
    values = [found.get(p.id) for p in evaluation.problems]
    return np.array(values, dtype=np.float64)  # None becomes nan


def score(answer: str) -> int | None:
    """The only number of an answer, apart from its reasoning, where it is 0, 1, 2 or 3."""
    numbers = NUMBER.findall(THOUGHT.sub("", answer))
    if len(numbers) == 1 and numbers[0] in ("0", "1", "2", "3"):
        return int(numbers[0])
    return None


def _questions(evaluation: Evaluation) -> list[Problem]:
    """Of the problems with two right responses or more, in the order of sampling."""
    asked = []
    rows = zip(evaluation.problems, evaluation.responses, evaluation.correct, strict=True)
    for problem, responses, correct in rows:
        right = [text for text, ok in zip(responses, correct, strict=True) if ok]
        if len(right) > 1:
            parts = [f"Solution {i}:\n{text}" for i, text in enumerate(right, 1)]
            asked.append(Problem(problem.id, "\n\n".join([PROMPT, *parts]), ""))
    return asked


def _read_stored(file: Path, keys: dict[str, str]) -> dict[str, str]:
    cut_broken_end(file)
    rows = read_lines(file, JudgementLine)
    return {row["problem"]: row["answer"] for row in rows if keys.get(row["problem"]) == row["of"]}

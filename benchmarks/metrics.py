"""How long the metrics of an evaluation take, on made-up responses.

    uv run benchmarks/metrics.py --problems 40 --samples 256 --chars 2000

First each metric on its own, in this process, on two problems; then `measure` as a whole, in
`--workers` processes. A response follows one of its problem's eight worked solutions, one word in
ten replaced and one sentence in ten left out; half are right, with one answer; the wrong ones have
20.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np
import typer

from nemo_algos.algorithms.core.pass_at_k import best_at_k_bootstrap
from nemo_algos.lab.evals.metrics import maj_at_k, measure, powers_of_two
from nemo_algos.lab.evals.metrics.diversity import (
    MATRICES,
    Texts,
    cluster_sizes,
    edit_pairs,
    self_bleu,
)
from nemo_algos.lab.evals.problem import Evaluation, Problem
from nemo_algos.lab.evals.schema import Measure

SOLUTIONS = 8
SENTENCE = 14  # words
FORMULAS = [r"=", r"+", r",", r"$", r"-3", r"x^2", r"(a+b)", r"\frac{1}{2}", r"2x=6", r"\\"]


def words(rng: random.Random, number: int) -> list[str]:
    """Pseudo-words of 1 to 7 letters, every second one a number or a formula.

    Some 2.5 characters per token, like the solutions of MATH."""
    out = []
    for i in range(number):
        letters = rng.choices("etaoinshrdlu", k=rng.randint(1, 7))
        formula = rng.choice([*FORMULAS, str(rng.randint(0, 99))])
        out.append(formula if i % 2 else "".join(letters))
    return out


def responses(rng: random.Random, samples: int, chars: int, correct: list[bool]) -> list[str]:
    """One problem's."""
    vocabulary = words(rng, 600)
    sentences = chars // (3 * SENTENCE)
    solutions = [
        [rng.choices(vocabulary, k=SENTENCE) for _ in range(sentences)] for _ in range(SOLUTIONS)
    ]
    out = []
    for right in correct[:samples]:
        kept = [s for s in rng.choice(solutions) if rng.random() > 0.1]
        text = ". ".join(
            " ".join(rng.choice(vocabulary) if rng.random() < 0.1 else word for word in sentence)
            for sentence in kept
        )
        answer = "42" if right else str(rng.randint(0, 19))
        out.append(f"{text[:chars]} \\boxed{{{answer}}}")
    return out


def make(problems: int, samples: int, chars: int) -> Evaluation:
    rng = random.Random(0)
    rewards = np.random.default_rng(0).random((problems, samples)) < 0.5
    texts = [responses(rng, samples, chars, row.tolist()) for row in rewards]
    lengths = np.array([[len(text) // 4 for text in row] for row in texts])
    return Evaluation(
        "made up",
        [Problem(str(i), "", "42") for i in range(problems)],
        texts,
        rewards.astype(float),
        [[text.rpartition("{")[2][:-1] for text in row] for row in texts],
        lengths,
        np.ones_like(rewards),
        Counter(ok=rewards.size),
    )


def each_metric(evaluation: Evaluation, settings: Measure) -> dict[str, float]:
    """Seconds per problem."""
    seconds: Counter[str] = Counter()

    def timed(name: str, function: Callable, *args: object):
        start = time.perf_counter()
        value = function(*args)
        seconds[name] += (time.perf_counter() - start) / len(evaluation.problems)
        return value

    n = evaluation.rewards.shape[1]
    ks = powers_of_two(n)
    rows = zip(evaluation.responses, evaluation.answers, evaluation.correct, strict=True)
    for texts, answers, correct in rows:
        unique = Texts.of(texts)
        timed("tokens", lambda t: t.counts, unique)
        matrices = {name: timed(name, matrix, unique) for name, matrix in MATRICES.items()}
        members = np.bincount(unique.index[correct], minlength=len(unique.unique))
        levels = settings.thresholds
        timed("clusters", cluster_sizes, matrices["tfidf"], members, levels, settings.linkage)
        timed("edit, 500 pairs by character", edit_pairs, unique, unique.index, 500, 0)
        timed("self_bleu", self_bleu, unique)
        timed("maj@k", maj_at_k, answers, correct.astype(float), ks)
        timed("best@k (bootstrap)", best_at_k_bootstrap, correct[None], ks)
    return dict(seconds)


def main(
    problems: int = 40,
    samples: int = 256,
    chars: Annotated[int, typer.Option(help="Length of a response")] = 2000,
    workers: int = 2,
) -> None:
    settings = Measure()
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores", end=", ")
    print(f"load {os.getloadavg()[0]:.1f} at the start; {samples} samples of {chars} characters")
    for name, seconds in each_metric(make(2, samples, chars), settings).items():
        print(f"{name:28} {1e3 * seconds:8.1f} ms per problem")
    evaluation = make(problems, samples, chars)
    start, last = time.perf_counter(), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        last = time.perf_counter() - start
        if done % 50 == 0:
            print(f"{done}/{total} after {last:.0f} s", flush=True)

    out = measure(evaluation, settings, workers=workers, progress=progress)
    whole = time.perf_counter() - start
    print(f"measure: {problems} problems in {whole:.1f} s in {workers} processes,", end=" ")
    print(f"{last:.1f} s of it on texts; {500 * whole / problems / 60:.1f} min per 500 problems")
    print({name: round(interval["value"], 4) for name, interval in out["scalars"].items()})


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

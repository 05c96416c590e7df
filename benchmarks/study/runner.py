"""The runs of a study; a row of results.csv for each that has finished.

A run has collapsed where hardly any answer is right, hardly any choice is left, or it broke off.
Before training the countdown models have pass@1 0.35 and, with experts, 0.27, and entropies of
0.28 and 0.30 nats.
"""

import csv
import io
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from functools import partial
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from design import Trial
from planted import PlantedTrainer

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.pass_at_k import pass_at_k, ucc_at_k
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.evaluation import SEED, Sampled, sample
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.jsonl import refuse_links_out, replace
from nemo_algos.terminal import Console

LATE = 10  # steps at the end that the late means are of
COLLAPSED_PASS = 0.15  # pass@1, or mean reward, below which a run has collapsed
COLLAPSED_ENTROPY = 0.02  # nats per token
TIMES = ("CPU seconds", "tokens_per_second", "time/")  # columns that begin so vary
Row = dict[str, float | str]


def results(path: Path) -> dict[str, Row]:
    """The finished runs, by id. Raises ValueError for a file that is no such table."""
    if not path.exists():
        return {}
    refuse_links_out(path.parent)
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        return {row["id"]: {k: _value(k, v) for k, v in row.items() if v != ""} for row in rows}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        what = f"{path} does not contain the results of a study ({error!r})"
        raise ValueError(f"{what}. Delete it.") from None


def _value(name: str, text: str) -> float | str:
    """An id may look like a number."""
    try:
        return text if name == "id" else float(text)
    except ValueError:
        return text


def go(runs: Sequence[Trial], folder: Path, processes: Executor, path: int = 0) -> Iterator[Row]:
    """Run what results.csv lacks; each row when its run has finished and the file has it.

    path: steps between evaluations, which go to raw/ID.path.jsonl; 0: none.
    """
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    table = folder / "results.csv"
    done = results(table)
    waiting = [processes.submit(train, run, folder, path) for run in runs if run.id not in done]
    for future in as_completed(waiting):
        row = future.result()
        done[str(row["id"])] = row
        write_table(table, list(done.values()))
        yield row


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """All rows as CSV; a column that a later row brings is there for all."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    replace(path, table.getvalue())


def train(run: Trial, folder: Path, path: int = 0) -> Row:
    """Train and evaluate; the steps go to raw/ID.jsonl. `failed` says why a run ended early."""
    torch.set_num_threads(1)
    start = time.process_time()
    algorithm = build(run.config.method, run.config.rollout_correction)
    make = partial(PlantedTrainer, run.planted) if run.planted else Trainer
    trainer = build_trainer(run.config, algorithm, Console(quiet=True), make)
    grpo, steps, failed = run.config.grpo, [], ""
    asked = grpo.max_val_samples, grpo.val_samples_per_prompt, SEED
    points: list[dict[str, float]] = []

    def evaluate() -> dict[str, float]:
        found = measures(sample(trainer.policy, trainer.task, *asked))
        points.append({"step": len(steps), **found})
        return found

    try:
        for step in range(grpo.max_num_steps):
            if path and step % path == 0:
                evaluate()
            steps.append(trainer.step())
    except (FloatingPointError, ValueError) as error:  # of the loss; of numbers no longer finite
        failed = str(error)
    (folder / "raw" / f"{run.id}.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    found = evaluate()
    if path:
        lines = "".join(json.dumps(p) + "\n" for p in points)
        (folder / "raw" / f"{run.id}.path.jsonl").write_text(lines)
    seconds, last = time.process_time() - start, steps[-LATE:]
    names = dict.fromkeys(name for step in last for name in step)
    late = {n: fmean(s[n] for s in last if n in s) for n in names}
    first = {"id": run.id, "method": algorithm.name, "seed": grpo.seed, "steps": len(steps)}
    row: Row = {**first, "failed": failed, "CPU seconds": seconds, **found, **late}
    if collapsed(row):
        row["collapse step"] = collapse_step(steps)
    return row


def measures(sampled: Sampled) -> dict[str, float]:
    """pass@k and UCC@k for k = 1, 2, 4, ...; mean tokens of all and of right responses, if any."""
    n = len(sampled.lengths[0])
    ks = [2**i for i in range(n.bit_length())]
    sizes = [list(Counter(s for s in x if s is not None).values()) for x in sampled.solutions]
    passed = pass_at_k([sum(s) for s in sizes], n, ks).mean(0)
    unique = np.mean([ucc_at_k(s, n, ks) for s in sizes], axis=0)
    out = {f"pass@{k}": float(x) for k, x in zip(ks, passed, strict=True)}
    out |= {f"UCC@{k}": float(x) for k, x in zip(ks, unique, strict=True)}
    solutions, lengths = (chain.from_iterable(x) for x in (sampled.solutions, sampled.lengths))
    pairs = list(zip(solutions, lengths, strict=True))
    right = [length for solution, length in pairs if solution is not None]
    out["length"] = fmean(length for _, length in pairs)
    return out | ({"length of right": fmean(right)} if right else {})


def collapsed(row: Mapping[str, float | str]) -> bool:
    """Whether a run of results.csv broke off, or ended with too low a pass@1 or entropy."""
    late = float(row.get("entropy/exact", 0.0))
    low = float(row["pass@1"]) < COLLAPSED_PASS or late < COLLAPSED_ENTROPY
    return bool(row.get("failed")) or low


def collapse_step(steps: Sequence[Mapping[str, float]]) -> int:
    """The step from which on reward or entropy stay too low; their number, where they do not."""
    lasting = 0
    for number, step in enumerate(steps, 1):
        if step["reward/mean"] >= COLLAPSED_PASS and step["entropy/exact"] >= COLLAPSED_ENTROPY:
            lasting = number
    return lasting


def verify(
    trials: Sequence[Trial], folder: Path, share: float, again: Path, processes: Executor
) -> Iterator[tuple[str, dict[str, tuple[object, object]]]]:
    """Make a random share of the finished runs again, at least one, in the folder `again`.

    Yields ids with the columns that differ: (written, found).
    """
    rows = results(folder / "results.csv")
    finished = [trial for trial in trials if trial.id in rows]
    chosen = random.SystemRandom().sample(finished, ceil(share * len(finished)))
    (again / "raw").mkdir(parents=True, exist_ok=True)
    for future in as_completed([processes.submit(train, trial, again) for trial in chosen]):
        row = future.result()
        written = rows[str(row["id"])]
        names = [n for n, x in row.items() if x != "" and not n.startswith(TIMES)]
        differing = {n: (written.get(n), row[n]) for n in names if written.get(n) != row[n]}
        yield str(row["id"]), differing

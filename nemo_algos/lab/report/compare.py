"""Two models on the same problems: what changed, and where."""

from collections.abc import Iterable
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from nemo_algos.algorithms.core.pass_at_k import pass_at_k
from nemo_algos.lab.evals.metrics import Bootstrap

SOLUTION = ("ucc_similarity", "ucc_threshold", "linkage", "embedding_model")  # what UCC hangs on
BUCKETS = (0, 8, 32, 128, 256)  # QUATRO's, right responses of 256
Ints = NDArray[np.int64]


def compare(base: dict[str, Any], tuned: dict[str, Any]) -> dict[str, Any]:
    """tuned against base, both from `measure`, over the problems that both have.

    Intervals are of the difference problem by problem, with base's resamples and seed. JSON-able;
    the keys are in docs/benchmarks.md. Raises ValueError: another benchmark, another number of
    samples, or no problem in common.
    """
    for key, thing in {"benchmark": "benchmark", "samples": "number of samples"}.items():
        if base[key] != tuned[key]:
            raise ValueError(
                f"{key}={base[key]} against {tuned[key]} differ. Evaluate both with the same "
                f"{thing}."
            )
    n = base["samples"]
    ks = base["curves"]["pass@k"]["k"]
    ids = [i for i in base["ids"] if i in set(tuned["ids"])]
    if not ids:
        raise ValueError("the runs have no problem in common. Evaluate both on one benchmark.")
    before = _align(base["correct"], base, ids)
    after = _align(tuned["correct"], tuned, ids)
    means = [_align(run["per_problem"]["mean"], run, ids) for run in (base, tuned)]
    bootstrap = Bootstrap(ids, base["settings"]["resamples"], base["settings"]["seed"])
    gain = pass_at_k(after, n, ks) - pass_at_k(before, n, ks)
    clusters = []
    for run in (base, tuned):
        clusters.append(_align(run["per_problem"]["clusters"], run, ids))
    alike = all(base["settings"][name] == tuned["settings"][name] for name in SOLUTION)
    return {
        "benchmark": base["benchmark"],
        "problems": len(ids),
        "samples": n,
        "unpaired": {"base": len(base["ids"]) - len(ids), "tuned": len(tuned["ids"]) - len(ids)},
        "mean": bootstrap.interval(means[1] - means[0]),
        "pass@k": bootstrap.curve(gain, ks),
        "ucc@n": bootstrap.interval(clusters[1] - clusters[0]) if alike else None,
        "solved": _solved_counts(before > 0, after > 0),
        "buckets": [_bucket(before, after, *limits) for limits in _limits(n)],
    }


def _align(values: Iterable[float], run: dict[str, Any], ids: list[str]) -> NDArray[Any]:
    """A run's values [P], in the order of `ids`."""
    by_id = dict(zip(run["ids"], values, strict=True))
    return np.array([by_id[i] for i in ids])


def _solved_counts(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> dict[str, float]:
    """Problems with a right response; p_value: McNemar's exact test on those that changed."""
    both = int((before & after).sum())
    either = int((before | after).sum())
    gained = int(after.sum()) - both
    lost = int(before.sum()) - both
    p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    counts = {"both": both, "only_base": lost, "only_tuned": gained}
    return {**counts, "neither": len(before) - either, "p_value": p_value}


def _limits(n: int) -> list[tuple[float, float]]:
    """(above, up_to) of each bucket that a count can be in, scaled from 256 to n."""
    limits = []
    above = -1.0
    for edge in BUCKETS[1:]:
        up_to = edge * n / BUCKETS[-1]
        if floor(above) < floor(up_to):
            limits.append((above, up_to))
        above = up_to
    return limits


def _bucket(before: Ints, after: Ints, above: float, up_to: float) -> dict[str, float | None]:
    """The problems which base answers right in this many of its n responses."""
    inside = (before > above) & (before <= up_to)
    problems = int(inside.sum())
    flipped = int(((before == 0) & (after > 0))[inside].sum())
    return {
        "above": max(above, 0.0),
        "up_to": up_to,
        "problems": problems,
        "unsolved_by_base": int((before[inside] == 0).sum()),
        "solved_by_tuned": int((after[inside] > 0).sum()),
        "flipped": flipped,
        "flip_rate": flipped / problems if problems else None,
    }

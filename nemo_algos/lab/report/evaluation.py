"""Figures of one benchmark: curves over k, diversity, difficulty."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nemo_algos.lab.report.figure import Figure, Line
from nemo_algos.lab.report.matrix import Matrix, Side, matrix
from nemo_algos.lab.report.runs import Group
from nemo_algos.lab.report.seeds import t_interval

CURVES = {
    "pass@k": ("Pass@k", "Probability that one of k responses is correct (unbiased)."),
    "pass^k": ("Pass^k", "Probability that all of k responses are correct."),
    "maj@k": ("Maj@k", "Probability that the most frequent answer of k is correct."),
    "best@k": ("Best@k", "Expected best reward of k responses."),
    "best@k (bootstrap)": ("Best@k, bootstrap", "k responses drawn with replacement, as in verl."),
    "ucc@k": ("UCC@k", "Expected number of different correct solutions in k responses."),
}
SIMILARITIES = {
    "tfidf": "TF-IDF cosine",
    "rouge_l": "ROUGE-L",
    "jaccard": "Jaccard",
    "edit": "Edit similarity",
    "embedding": "Embedding cosine",
}
IN_FILE_NAMES = str.maketrans({"@": "_at_", "^": "_hat_", " ": "_", "(": "", ")": ""})
SIDES = {"correct": "correct responses", "all": "all responses"}
Measured = dict[str, Any]  # what measure() returns
Curve = dict[str, Any]  # "k", "value", "low", "high": lists of equal length


def figures(
    benchmark: str, groups: Sequence[Group], buckets: Sequence[tuple[float, float]]
) -> list[Figure]:
    """Those that at least one run has; buckets: (above, up_to) right responses of the first run."""
    having = []
    for group in groups:
        runs = tuple(run for run in group.runs if benchmark in run.evals)
        if runs:
            having.append(group._replace(runs=runs))
    drawn = [_over_k(name, benchmark, having) for name in CURVES]
    drawn.append(_over_thresholds(benchmark, having))
    drawn.append(by_difficulty(benchmark, having, buckets))
    return [figure for figure in drawn if figure.lines]


def similarities(benchmark: str, groups: Sequence[Group]) -> list[Figure | Matrix]:
    """Histograms of pairs' similarity, of right responses and of all; then the matrix of pairs."""
    drawn: list[Figure | Matrix] = []
    for side in SIDES:
        for similarity in SIMILARITIES:
            histogram = _histogram(benchmark, groups, similarity, side)
            if histogram.lines:
                drawn.append(histogram)
    pairs = _pairs(benchmark, groups)
    if pairs:
        drawn.append(pairs)
    return drawn


def _pairs(benchmark: str, groups: Sequence[Group]) -> Matrix | None:
    """The matrix of each group's first run, by the first one's `ucc_similarity`.

    None for embeddings, which no evaluation keeps.
    """
    sides = []
    for group in groups:
        run = group.runs[0]
        if benchmark in run.evals:
            sides.append(Side(group.label, run.evals[benchmark], run.eval_folders[benchmark]))
    if not sides:
        return None
    similarity = sides[0].measured["settings"]["ucc_similarity"]
    if similarity == "embedding":
        return None
    title = f"{SIMILARITIES[similarity]}, pairs of responses"
    return matrix(f"{benchmark}_{similarity}_pairs", title, similarity, sides)


def _lines(
    benchmark: str, groups: Sequence[Group], curve_of: Callable[[Measured], Curve | None]
) -> list[Line]:
    lines = []
    for group in groups:
        curves = []
        for run in group.runs:
            curve = curve_of(run.evals[benchmark])
            if curve:
                curves.append(curve)
        if curves:
            x, y, low, high = combine(curves)
            style = {"dashed": group.dashed, "seeds": len(curves)}
            lines.append(Line(group.label, group.color, x, y, low, high, **style))
    return lines


def combine(curves: Sequence[Curve]) -> tuple[list[float], ...]:
    """k, value, low, high: a run's own, or over seeds the mean with its t interval."""
    shared = set(curves[0]["k"]).intersection(*(curve["k"] for curve in curves))
    ks = [k for k in curves[0]["k"] if k in shared]
    if len(curves) > 1:
        drawn = t_interval([_at(curve, "value", ks) for curve in curves])
    else:
        drawn = [_at(curves[0], part, ks) for part in ("value", "low", "high")]
    return ks, *(part.tolist() for part in drawn)


def _at(curve: Curve, part: str, ks: Sequence[float]) -> np.ndarray:
    """A part of the curve at each k; NaN where it has no value."""
    by_k = dict(zip(curve["k"], curve[part], strict=True))
    return np.array([by_k[k] for k in ks], dtype=float)  # makes NaN of None


def _over_k(curve: str, benchmark: str, groups: Sequence[Group]) -> Figure:
    title, caption = CURVES[curve]
    name = f"{benchmark}_{curve}".translate(IN_FILE_NAMES)
    label = "mean over problems"
    lines = _lines(benchmark, groups, lambda m: _unless_pass(curve, m["curves"]))
    if curve == "ucc@k":
        label = "solutions"
        caption = f"{caption} {_solution(benchmark, groups)}"
    return Figure(name, title, "k", label, lines, caption, "log2")


def _solution(benchmark: str, groups: Sequence[Group], at: str = "") -> str:
    """The caption's sentence: from which similarity on two right responses are one solution."""
    by_rule: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            settings = run.evals[benchmark]["settings"]
            similarity = SIMILARITIES[settings["ucc_similarity"]]
            threshold = at or settings["ucc_threshold"]
            rule = f"{similarity} ≥ {threshold}, {settings['linkage']} linkage"
            by_rule.setdefault(rule, []).append(run.label)
    rules = list(by_rule)
    if len(rules) > 1:
        rules = [f"{rule} ({', '.join(labels)})" for rule, labels in by_rule.items()]
    return f"One solution: {'; '.join(rules)}."


def _unless_pass(curve: str, curves: dict[str, Curve]) -> Curve | None:
    """The curve; not best@k where every reward is 0 or 1, as that is pass@k."""
    found = curves.get(curve)
    passed = curves["pass@k"]["value"]
    if curve == "best@k" and found and np.allclose(found["value"], passed, rtol=1e-9):
        return None
    return found


def _over_thresholds(benchmark: str, groups: Sequence[Group]) -> Figure:
    name = f"{benchmark}_ucc_by_threshold"
    title = "UCC@n by threshold"
    lines = _lines(benchmark, groups, _ucc_by_threshold)
    caption = (
        "At the largest k. With a lower threshold fewer responses count as different. "
        f"{_solution(benchmark, groups, at='threshold')}"
    )
    y = "different correct solutions"
    return Figure(name, title, "similarity threshold", y, lines, caption)


def _ucc_by_threshold(metrics: Measured) -> Curve | None:
    """UCC at the largest k as a curve over thresholds."""
    curves = metrics.get("ucc_by_threshold", {})
    if not curves:
        return None
    over: Curve = {"k": [], "value": [], "low": [], "high": []}
    for threshold in sorted(curves, key=float):
        over["k"].append(float(threshold))
        for part in ("value", "low", "high"):
            over[part].append(curves[threshold][part][-1])
    return over


def by_difficulty(
    benchmark: str, groups: Sequence[Group], buckets: Sequence[tuple[float, float]]
) -> Figure:
    """Mean reward of the problems that the first run answers right in so many of its responses."""
    lines = []
    if groups and buckets:
        base = groups[0].runs[0].evals[benchmark]
        apart = min(0.14, 0.8 / len(groups))  # all of a bucket's points stay nearest to its tick
        for i, group in enumerate(groups):
            rows = []
            for run in group.runs:
                rows.append(_bucket_means(base, run.evals[benchmark], buckets))
            offset = apart * (i - (len(groups) - 1) / 2)
            lines.append(_points(group, np.array(rows), offset))
    ticks = [bucket_name(*bucket) for bucket in buckets]
    name = f"{benchmark}_difficulty"
    x = "correct responses of the first run"
    y = "mean reward"
    caption = "Problems in buckets by the number of correct responses of the first run."
    return Figure(name, "Mean by difficulty", x, y, lines, caption, ticks=ticks)


def _points(group: Group, rows: np.ndarray, offset: float) -> Line:
    """Rows [runs, buckets], over the buckets that have a value in every run."""
    known = ~np.isnan(rows).any(axis=0)
    line = Line(
        label=group.label,
        color=group.color,
        x=[bucket + offset for bucket in np.flatnonzero(known).tolist()],
        y=rows[:, known].mean(axis=0).tolist(),
        kind="points",
    )
    if len(rows) == 1:
        return line
    _, low, high = t_interval(rows[:, known])
    return replace(line, low=low.tolist(), high=high.tolist(), seeds=len(rows))


def _bucket_means(
    base: Measured, tuned: Measured, buckets: Sequence[tuple[float, float]]
) -> list[float]:
    """tuned's mean reward of base's problems in each bucket; NaN for an empty one."""
    right = dict(zip(base["ids"], base["correct"], strict=True))
    rewards = dict(zip(tuned["ids"], tuned["per_problem"]["mean"], strict=True))
    shared = [i for i in base["ids"] if i in rewards]
    means = []
    for above, up_to in buckets:
        inside = []
        for i in shared:
            if _within(right[i], above, up_to):
                inside.append(rewards[i])
        means.append(float(np.mean(inside)) if inside else np.nan)
    return means


def _within(count: float, above: float, up_to: float) -> bool:
    """In (above, up_to]; the first bucket, whose `above` is 0, has 0 too."""
    return above < count <= up_to or count == above == 0


def bucket_name(above: float, up_to: float) -> str:
    """(0, 2) is "0-2", (2, 8) is "3-8", (2, 3) is "3"."""
    low = 0 if above == 0 else int(above) + 1
    high = int(up_to)
    if low == high:
        return str(low)
    return f"{low}–{high}"  # noqa: RUF001


def _histogram(benchmark: str, groups: Sequence[Group], similarity: str, side: str) -> Figure:
    lines = []
    for group in groups:
        found = []
        for run in group.runs:
            histograms = run.evals.get(benchmark, {}).get("histograms", {})
            if similarity in histograms:
                found.append(histograms[similarity])
        counts = np.sum([histogram[side] for histogram in found], axis=0)
        if counts.sum() > 0:
            shares = (counts / counts.sum()).tolist()
            style = {"kind": "steps", "dashed": group.dashed}
            lines.append(Line(group.label, group.color, found[0]["edges"], shares, **style))
    name = f"{benchmark}_{similarity}_{side}"
    title = f"{SIMILARITIES[similarity]}, {SIDES[side]}"
    caption = "Pairs of responses to one problem. Pairs near 1 repeat one solution."
    return Figure(name, title, "similarity of two responses", "share of pairs", lines, caption)

"""Figures of one benchmark: curves over k, diversity, difficulty."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nemo_algos.lab.report.figure import Figure, Line
from nemo_algos.lab.report.matrix import Matrix, Side, matrix
from nemo_algos.lab.report.runs import Group

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
    """Those that at least one run has; buckets: (above, up to) right responses of the first run."""
    with_it = [(g, tuple(run for run in g.runs if benchmark in run.evals)) for g in groups]
    having = [group._replace(runs=runs) for group, runs in with_it if runs]
    made = [
        *(_over_k(name, benchmark, having) for name in CURVES),
        _over_thresholds(benchmark, having),
        by_difficulty(benchmark, having, buckets),
    ]
    return [figure for figure in made if figure.lines]


def similarities(benchmark: str, groups: Sequence[Group]) -> list[Figure | Matrix]:
    """Histograms of pairs' similarity, of right responses and of all; then the matrix of pairs."""
    made = [_histogram(benchmark, groups, s, side) for side in SIDES for s in SIMILARITIES]
    pairs = _pairs(benchmark, groups)
    return [*(figure for figure in made if figure.lines), *([pairs] if pairs else [])]


def _pairs(benchmark: str, groups: Sequence[Group]) -> Matrix | None:
    """The matrix of each group's first run, by the first one's `ucc_similarity`.

    None for embeddings, which no evaluation keeps.
    """
    having = [(g, run) for g in groups for run in g.runs[:1] if benchmark in run.evals]
    sides = [Side(g.label, r.evals[benchmark], r.eval_folders[benchmark]) for g, r in having]
    similarity = sides[0].measured["settings"]["ucc_similarity"] if sides else "embedding"
    if similarity == "embedding":
        return None
    title = f"{SIMILARITIES[similarity]}, pairs of responses"
    return matrix(f"{benchmark}_{similarity}_pairs", title, similarity, sides)


def _lines(
    benchmark: str, groups: Sequence[Group], curve_of: Callable[[Measured], Curve | None]
) -> list[Line]:
    lines = []
    for group in groups:
        curves = [c for run in group.runs if (c := curve_of(run.evals[benchmark]))]
        if curves:
            x, y, low, high = combine(curves)
            lines.append(Line(group.label, group.color, x, y, low, high, dashed=group.dashed))
    return lines


def combine(curves: Sequence[Curve]) -> tuple[list[float], ...]:
    """k, value, low, high: over seeds the mean, the lowest and the highest end of an interval."""
    ks = [k for k in curves[0]["k"] if all(k in curve["k"] for curve in curves)]

    def row(curve: Curve, part: str) -> list[float]:
        at = dict(zip(curve["k"], curve[part], strict=True))
        return [np.nan if at[k] is None else float(at[k]) for k in ks]

    parts = {"value": np.mean, "low": np.min, "high": np.max}
    return ks, *(f([row(c, part) for c in curves], axis=0).tolist() for part, f in parts.items())


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
    for run in (run for group in groups for run in group.runs):
        settings = run.evals[benchmark]["settings"]
        by_rule.setdefault(
            f"{SIMILARITIES[settings['ucc_similarity']]} ≥ {at or settings['ucc_threshold']}, "
            f"{settings['linkage']} linkage",
            [],
        ).append(run.label)
    named = [f"{rule} ({', '.join(labels)})" for rule, labels in by_rule.items()]
    return f"One solution: {'; '.join(named if len(named) > 1 else by_rule)}."


def _unless_pass(curve: str, curves: dict[str, Curve]) -> Curve | None:
    """The curve; not best@k where every reward is 0 or 1, as that is pass@k."""
    found = curves.get(curve)
    passed = curves["pass@k"]["value"]
    same = curve == "best@k" and found and np.allclose(found["value"], passed, rtol=1e-9)
    return None if same else found


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
    ordered = sorted(curves, key=float)
    last = {part: [curves[t][part][-1] for t in ordered] for part in ("value", "low", "high")}
    return {"k": [float(t) for t in ordered], **last} if curves else None


def by_difficulty(
    benchmark: str, groups: Sequence[Group], buckets: Sequence[tuple[float, float]]
) -> Figure:
    """Mean reward of the problems that the first run answers right in so many of its responses."""
    lines = []
    base = groups[0].runs[0].evals[benchmark] if groups else {}
    for i, group in enumerate(groups if buckets else ()):
        rows = np.array([_bucket_means(base, r.evals[benchmark], buckets) for r in group.runs])
        apart = min(0.14, 0.8 / len(groups))  # all of a bucket's points stay nearest to its tick
        places = [b + apart * (i - (len(groups) - 1) / 2) for b in range(len(buckets))]
        known = [not np.isnan(column).any() for column in rows.T]
        x = [p for p, there in zip(places, known, strict=True) if there]
        means, low, high = (f(rows[:, known], axis=0).tolist() for f in (np.mean, np.min, np.max))
        several = len(rows) > 1
        lines.append(
            Line(
                label=group.label,
                color=group.color,
                x=x,
                y=means,
                low=low if several else None,
                high=high if several else None,
                kind="points",
            )
        )
    ticks = [bucket_name(*bucket) for bucket in buckets]
    name = f"{benchmark}_difficulty"
    x = "correct responses of the first run"
    y = "mean reward"
    caption = "Problems in buckets by the number of correct responses of the first run."
    return Figure(name, "Mean by difficulty", x, y, lines, caption, ticks=ticks)


def _bucket_means(
    base: Measured, tuned: Measured, buckets: Sequence[tuple[float, float]]
) -> list[float]:
    """tuned's mean reward of base's problems in each bucket; NaN for an empty one."""
    right = dict(zip(base["ids"], base["correct"], strict=True))
    means = dict(zip(tuned["ids"], tuned["per_problem"]["mean"], strict=True))
    shared = [i for i in base["ids"] if i in means]
    # in (above, up_to]; the first bucket, whose `above` is 0, has 0 too
    inside = [
        [means[i] for i in shared if above < right[i] <= up_to or right[i] == above == 0]
        for above, up_to in buckets
    ]
    return [float(np.mean(values)) if values else np.nan for values in inside]


def bucket_name(above: float, up_to: float) -> str:
    """(0, 2) is "0-2", (2, 8) is "3-8", (2, 3) is "3"."""
    low = 0 if above == 0 else int(above) + 1
    high = int(up_to)
    return str(low) if low == high else f"{low}–{high}"  # noqa: RUF001


def _histogram(benchmark: str, groups: Sequence[Group], similarity: str, side: str) -> Figure:
    lines = []
    for group in groups:
        found = [run.evals.get(benchmark, {}).get("histograms", {}) for run in group.runs]
        found = [h[similarity] for h in found if similarity in h]
        counts = np.sum([h[side] for h in found], axis=0)
        if counts.sum() > 0:
            shares = (counts / counts.sum()).tolist()
            style = {"kind": "steps", "dashed": group.dashed}
            lines.append(Line(group.label, group.color, found[0]["edges"], shares, **style))
    name = f"{benchmark}_{similarity}_{side}"
    title = f"{SIMILARITIES[similarity]}, {SIDES[side]}"
    caption = "Pairs of responses to one problem. Pairs near 1 repeat one solution."
    return Figure(name, title, "similarity of two responses", "share of pairs", lines, caption)

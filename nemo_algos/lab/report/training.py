"""Figures of training: metrics over steps."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from nemo_algos.algorithms.methods import METHODS
from nemo_algos.lab.report.figure import Figure, Line
from nemo_algos.lab.report.runs import Group, LoadedRun, Series
from nemo_algos.lab.report.seeds import t_interval

WINDOWS = 25  # smoothed over a 25th of the steps


class Chart(NamedTuple):
    """One figure; metrics: the first one that a run has is drawn, dashed where it is another.

    in_summary: whether the summary has its mean over the last steps.
    """

    name: str
    title: str
    y_label: str
    metrics: tuple[str, ...]
    caption: str = ""
    scale: Literal["linear", "log"] = "linear"
    in_summary: bool = False


# of NeMo-RL's timers; exposed_generation is async_grpo_train's
PHASES = (
    "total_step_time",
    "generation",
    "exposed_generation",
    "reward_calculation",
    "policy_and_reference_logprobs",
    "policy_training",
)
ENTROPIES = ("entropy/exact", "entropy/updated", "entropy/approximate")
CURVES = (
    # what a reader asks for first: a row of a laptop's page
    Chart(
        "validation",
        "Held-out reward",
        "mean reward",
        metrics=("validation/accuracy",),
        caption="Mean reward on the validation problems.",
    ),
    Chart(
        "reward",
        "Reward",
        "mean reward",
        metrics=("reward/mean",),
        caption="Mean over the rollout batch of each training step.",
        in_summary=True,
    ),
    Chart(
        "entropy",
        "Entropy",
        "nats per token",
        metrics=ENTROPIES,
        caption=(
            "At 0 the sampling policy no longer explores. Dashed: of the policy in its "
            "updates (TRL, verl), or NeMo-RL's approximation."
        ),
        in_summary=True,
    ),
    Chart(
        "flat",
        "Flat groups",
        "share of groups",
        metrics=("groups/flat_share",),
        caption=(
            "Share of groups whose responses all have the same reward. At 1 nothing is learned."
        ),
    ),
    Chart(
        "clip",
        "Clipped",
        "share of tokens",
        metrics=("clip/fraction",),
        caption="Share of tokens whose gradient clipping cuts.",
    ),
    Chart(
        "clip_above",
        "Clipped above, A > 0",
        "share of tokens",
        metrics=("clip/positive_above",),
        caption="Share of tokens above the clip range. Their gradient is 0.",
        in_summary=True,
    ),
    Chart(
        "clip_below",
        "Clipped below, A < 0",
        "share of tokens",
        metrics=("clip/negative_below",),
        caption="Share of tokens below the clip range. Their gradient is 0.",
        in_summary=True,
    ),
    Chart(
        "ratio_p99",
        "Ratio, 99th percentile",
        "new / old probability",
        metrics=("ratio/p99",),
        caption="99th percentile of the method's ratio over the updates of a step.",
    ),
    Chart(
        "ratio_max",
        "Ratio, maximum",
        "new / old probability",
        metrics=("ratio/max",),
        caption="Largest ratio of a step. Log scale.",
        scale="log",
    ),
    Chart(
        "kl_old",
        "KL to the sampling policy",
        "nats per token",
        metrics=("kl/old",),
        caption="How far the updates of one batch move the policy.",
        in_summary=True,
    ),
    Chart(
        "kl_ref",
        "KL to the reference",
        "nats per token",
        metrics=("kl/ref",),
        caption="Shown for runs with a reference policy.",
    ),
    Chart(
        "length",
        "Response length",
        "tokens",
        metrics=("length/mean",),
        caption="Mean over the rollout batch.",
    ),
    Chart(
        "grad_norm",
        "Gradient norm",
        "before clipping",
        metrics=("grad_norm",),
        caption="Mean over the updates of a step (NeMo-RL: of its last update). Log scale.",
        scale="log",
    ),
)
FAMILIES = {*METHODS, "mismatch", "correction", "verifier", "rollouts", "turns", "val-core"}
TIMES = ("time/seconds", *(f"timing/train/{name}" for name in PHASES))


def figures(groups: Sequence[Group]) -> tuple[list[Figure], list[str]]:
    """Those that at least one run has; then the methods' own, the sampler's, verdicts and times.

    A metric that is 0 at every step of every run is not drawn: the second list has its title.
    """
    drawn = []
    zero = []
    for chart in (*CURVES, *_own(groups)):
        lines = []
        for group in groups:
            line = _line(chart, group)
            if line:
                lines.append(line)
        if not lines:
            continue
        if all(map(_is_zero, lines)):
            zero.append(chart.title)
            continue
        drawn.append(
            Figure(
                name=f"training_{chart.name}",
                title=chart.title,
                x_label="step",
                y_label=chart.y_label,
                lines=lines,
                caption=f"{chart.caption} {_equal(lines)}".strip(),
                scale=chart.scale,
            )
        )
    return drawn, zero


def _is_zero(line: Line) -> bool:
    return not any(line.y) and not any(line.high or ())


def _equal(lines: Sequence[Line]) -> str:
    """A sentence for each curve that a later one, equal at every step, is drawn over."""
    hidden = []
    for i, line in enumerate(lines):
        above = []
        for other in lines[i + 1 :]:
            if (other.x, other.y) == (line.x, line.y):
                above.append(other)
        if above:
            hidden.append(f"{line.label} is hidden by {above[-1].label}: they are equal.")
    return " ".join(hidden)


def _own(groups: Sequence[Group]) -> list[Chart]:
    """A chart of each metric that is a method's own, or of a family that all runs may have."""
    names = set[str]()
    families = set(FAMILIES)
    for group in groups:
        for run in group.runs:
            names.update(run.metrics)
            families |= _methods(run)
    for chart in CURVES:
        names.difference_update(chart.metrics)
    own = []
    for name in sorted(names):
        if name.partition("/")[0] in families or name in TIMES:
            own.append(Chart(re.sub(r"\W", "_", name), name, "", metrics=(name,)))
    return own


def _methods(run: LoadedRun) -> set[str]:
    """The names in its method block, and that of a record of the user's own."""
    names = set(str(run.manifest.get("method", "")).split("+"))
    for part in (run.config.get("method") or {}).values():
        name = part.get("name") if isinstance(part, dict) else part
        if isinstance(name, str):
            names.add(name)
    return names


def _line(chart: Chart, group: Group) -> Line | None:
    """A run's metric; of several seeds the mean, in the band of its t interval."""
    series = []
    drawn = ""  # the metric of the first run that has one
    for run in group.runs:
        metric = next((name for name in chart.metrics if name in run.metrics), "")
        if metric:
            series.append(run.metrics[metric])
            drawn = drawn or metric
    if not series:
        return None
    steps, values = together(series)
    line = Line(
        label=group.label,
        color=group.color,
        x=steps,
        y=values.mean(0).tolist(),
        dashed=group.dashed or drawn != chart.metrics[0],
        smooth=max(len(steps) // WINDOWS, 1),
    )
    if len(values) == 1:
        return line
    _, low, high = t_interval(values)
    if chart.scale == "log":  # on which a band ends above 0: at the lowest seed
        low = np.where(low > 0, low, values.min(0))
    return replace(line, low=low.tolist(), high=high.tolist(), seeds=len(values))


def together(series: Sequence[Series]) -> tuple[list[float], np.ndarray]:
    """The steps that all have, and the values at them, [runs, steps]."""
    tables = [dict(zip(*one, strict=True)) for one in series]
    steps = sorted(set(tables[0]).intersection(*tables[1:]))
    rows = []
    for table in tables:
        rows.append([table[step] for step in steps])
    return steps, np.array(rows)

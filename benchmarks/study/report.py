"""What a study's folder shows of its results: summary.csv, figures, and report.md."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import board
import differences
import summary
import survival
import torch
from design import Regime, Study, StudyCell
from equal_reward import equal_reward, read_paths
from figures import draw, draw_draws, draw_steps, draw_tradeoffs
from runner import results, write_table
from summary import ArmResult, Estimate, summarise

from nemo_algos.algorithms.core import dual
from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.style import save

SHOWN = ("pass@1", "pass@64", "UCC@64", "reward", "entropy", "length of right")
DELTAS = (0.001, 0.01, 0.1)
MAX_KL_FRACTION = 0.95  # QUATRO's default
HEAD = """# {title}

Each cell shows the mean ± half of the 95 % CI (Student's t over the seeds) on the held-out puzzles.
Below it is the difference from the baseline, paired by seed, in **bold** if its CI excludes 0. One
of 20 such intervals excludes 0 by chance. reward and entropy (nats per token) are means over the
last 10 training steps. length of right is the length of correct answers in tokens. Metrics that no
run changes are left out; summary.csv has all, and pass@k and UCC@k for each k.
"""


def show(study: Study, cells: Sequence[StudyCell], name: str, folder: Path) -> list[ArmResult]:
    """Write what follows from the folder's results.csv, and from raw/ where it is there."""
    rows = results(folder / "results.csv")
    paths = read_paths(folder, [c.run for c in cells]) if study.path else {}
    found = summarise(study, cells, rows, equal_reward(study, cells, paths))
    write_table(folder / "summary.csv", summary.table(found))
    if study.path:
        board.write(study, cells, found, paths, folder)
    draw(study, found, folder)
    differences.draw(study, found, folder)
    draw_draws(study, found, folder)
    draw_tradeoffs(study, found, folder)
    draw_steps(study, cells, folder)
    if squares := survival.squares(study, cells, rows):
        write_table(folder / "map.csv", survival.table(squares))
        survival.draw(squares, folder / "figures" / "map.png")
    draw_advantages(folder / "figures" / "quatro_advantages.png")
    write(study, found, f"The study {name}", folder / "report.md")
    return found


def write(study: Study, results: Sequence[ArmResult], title: str, path: Path) -> None:
    """report.md; figures/REGIME.png lie beside it."""
    parts = [HEAD.format(title=title)]
    if any(regime.column for regime in study.regimes.values()):
        parts.append("![The survival map](figures/map.png)\n")
    for name, regime in study.regimes.items():
        rows = [r for r in results if r.regime == name]
        parts += _section(name, regime, rows) if rows else []
    path.write_text("\n".join(parts))


def _section(name: str, regime: Regime, results: Sequence[ArmResult]) -> Iterator[str]:
    kind = "exploratory" if regime.exploratory else "fixed beforehand"
    written = ", ".join(f"`{key}={value}`" for key, value in regime.settings.items())
    settings = f" Settings: {written}." if written else ""
    seeds = f"{regime.first_seed} to {regime.first_seed + regime.seeds - 1}"
    yield f"## {regime.title} ({name})\n" if regime.title else f"## {name}\n"
    yield f"Claim: {regime.claim}.\n"
    yield f"Baseline {regime.baseline}, seeds {seeds}, {kind}.{settings}\n"
    yield from _table(regime, results)
    yield f"\n![{name}](figures/{name}.png)\n"


def _table(regime: Regime, results: Sequence[ArmResult]) -> Iterator[str]:
    """A row per arm; n where it is not the regime's, metrics where they are not all the same."""
    values = {m: [f"{r.value.mean:.3f}" for r in results if r.metric == m] for m in SHOWN}
    shown = [m for m, means in values.items() if len({*means}) > 1 or len(means) == 1]
    runs = dict.fromkeys((r.arm for r in results), 0)
    for result in results:
        runs[result.arm] = max(runs[result.arm], result.value.n)
    partial = {*runs.values()} != {regime.seeds}
    head = ["arm", *(["n"] if partial else []), *shown]
    yield f"| {' | '.join(head)} |\n|{'---|' * len(head)}"
    for arm, n in runs.items():
        found = {r.metric: r for r in results if r.arm == arm}
        cells = [_cell(found.get(m), arm == regime.baseline) for m in shown]
        yield f"| {' | '.join([arm, *([str(n)] if partial else []), *cells])} |"


def _cell(result: ArmResult | None, baseline: bool) -> str:
    if result is None:
        return "-"
    value = f"{result.value.mean:.3f}{_half(result.value)}"
    if baseline or not result.difference.n:
        return value
    difference = f"{result.difference.mean:+.3f}{_half(result.difference)}"
    mark = "**" if result.difference.resolved else ""
    return f"{value}<br>{mark}{difference}{mark}"


def _half(estimate: Estimate) -> str:
    return f" ± {(estimate.high - estimate.low) / 2:.3f}" if estimate.n > 1 else ""


def right_advantages(size: int, delta: float) -> list[float]:
    """A of a right response (rewards 0, 1) where 1, 2, .. size - 1 of the group are right."""
    right = torch.arange(1, size)
    rewards = (torch.arange(size) < right[:, None]).double().flatten()
    groups = Groups.of(torch.arange(size - 1).repeat_interleave(size))
    radius = dual.kl_radius(rewards, groups, delta, MAX_KL_FRACTION)
    return dual.solve(rewards, groups, radius)[0][::size].tolist()


def draw_advantages(path: Path, size: int = 8) -> None:
    """QUATRO's figure 2: a line per delta."""
    with save(path, (5.5, 3.4)) as (_, axis):
        for delta in DELTAS:
            axis.plot(range(1, size), right_advantages(size, delta), "o-", label=f"delta {delta}")
        axis.set(xlabel=f"right responses of {size}", ylabel="A of a right response", yscale="log")
        axis.legend()

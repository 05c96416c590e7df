"""The tables and figures of a study's folder, of its results.csv, cells.csv and study.json.

    uv run --with-requirements benchmarks/requirements.txt \\
      benchmarks/study/report.py benchmarks/study/results/*

Writes summary.csv and report.md; board.csv, if the study has paths; map.csv, if it has columns;
and figures/.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import board
import figures
import pandas as pd
import survival
import typer
from equal_reward import AT, REACHED, at_equal_reward, read_paths
from summary import read_runs, resolved, summarise

SHOWN = ("pass@1", "pass@64", "UCC@64", "reward", "entropy", "length of right")
KEPT = AT.format("pass@16")
HEAD = """# {title}

Each cell shows the mean ± half of the 95 % CI (Student's t over the seeds) on the held-out puzzles.
Below it is the difference from the baseline, paired by seed, in **bold** if its CI excludes 0. If
nothing differs, one in 20 does by chance. reward and entropy (nats per token) are means over the
last 10 training steps. length of right is the length of correct answers in tokens. Metrics that no
run changes are left out; summary.csv has all, and pass@k and UCC@k for each k.
"""


def main(folders: list[Path], draw: bool = True) -> None:
    """Write what follows from each folder's results."""
    for folder in folders:
        show(folder, draw)


def show(folder: Path, draw: bool = True) -> pd.DataFrame:
    """Write a folder's tables and, with draw, its figures; returns its summary."""
    study = json.loads((folder / "study.json").read_text())
    runs = read_runs(folder)
    paths = read_paths(folder, list(runs["run"].unique())) if study["path"] else pd.DataFrame()
    if study["path"]:
        runs = runs.join(at_equal_reward(study, runs, paths))
    found = summarise(study, runs)
    _write(found, folder / "summary.csv", "%.6g", "nan")
    text = [HEAD.format(title=f"The study {folder.name}")]
    if study["path"]:
        rows = board.table(study, runs, found, paths)
        _write(rows, folder / "board.csv", "%.6g", "nan")
        text.append("## The board\n")
        for name in study["regimes"]:
            text += ranked(rows, name)
    squares = survival.squares(study, runs)
    if len(squares):
        _write(squares, folder / "map.csv", "%.4g", "")
        text.append("![The survival map](figures/map.png)\n")
    for name, regime in study["regimes"].items():
        own = found[found["regime"] == name]
        text += section(name, regime, own) if len(own) else []
    (folder / "report.md").write_text("\n".join(text) + "\n")
    if draw:
        figures.draw_differences(study, found, folder)
        figures.draw_draws(study, found, folder)
        figures.draw_tradeoffs(study, found, folder)
        figures.draw_steps(study, runs, folder)
        figures.draw_advantages(folder / "figures" / "quatro_advantages.png")
        if len(squares):
            survival.draw(squares, folder / "figures" / "map.png")
    return found


def _write(table: pd.DataFrame, path: Path, digits: str, missing: str) -> None:
    table.to_csv(path, index=False, float_format=digits, na_rep=missing)


def section(name: str, regime: dict[str, Any], rows: pd.DataFrame) -> Iterator[str]:
    """A regime's heading and its table: a row per arm."""
    kind = "exploratory" if regime["exploratory"] else "fixed beforehand"
    written = ", ".join(f"`{key}={value}`" for key, value in regime["settings"].items())
    seeds = f"{regime['first_seed']} to {regime['first_seed'] + regime['seeds'] - 1}"
    yield f"## {regime['title']} ({name})\n" if regime["title"] else f"## {name}\n"
    yield f"Claim: {regime['claim']}.\n"
    settings = f" Settings: {written}." if written else ""
    yield f"Baseline {regime['baseline']}, seeds {seeds}, {kind}.{settings}\n"
    shown = [m for m in SHOWN if rows.loc[rows["metric"] == m, "mean"].round(3).nunique() > 1]
    runs = rows.groupby("arm", sort=False)["n"].max()
    yield f"| arm | n | {' | '.join(shown)} |\n|---|---|{'---|' * len(shown)}"
    for arm, n in runs.items():
        own = rows[rows["arm"] == arm].set_index("metric")
        cells = [str(arm), str(n)]
        for metric in shown:
            there = metric in own.index
            cells.append(_cell(own.loc[metric], arm == regime["baseline"]) if there else "-")
        yield f"| {' | '.join(cells)} |"
    yield ""


def _cell(row: pd.Series, baseline: bool) -> str:
    value = f"{row['mean']:.3f}"
    if row["n"] > 1:
        value += f" ± {(row['high'] - row['low']) / 2:.3f}"
    if baseline or not row["pairs"]:
        return value
    difference = f"{row['difference']:+.3f}"
    if row["pairs"] > 1:
        difference += f" ± {(row['difference high'] - row['difference low']) / 2:.3f}"
    mark = "**" if resolved(row) else ""
    return f"{value}<br>{mark}{difference}{mark}"


def ranked(rows: pd.DataFrame, regime: str) -> Iterator[str]:
    """A regime of the board: the highest pass@1 first. Bold: Holm's p is below .05."""
    own = rows[rows["regime"] == regime].sort_values("pass@1", ascending=False)
    if own.empty:
        return
    yield f"### {regime}\n"
    yield f"| method | models | pass@1 | to GRPO | {KEPT}, to GRPO | reach it | settings |"
    yield "|---|---|---|---|---|---|---|"
    for _, row in own.iterrows():
        first = [row["arm"], str(row["pass@1, n"]), f"{row['pass@1']:.3f}"]
        gaps = [_gap(row, metric) for metric in ("pass@1", KEPT)]
        yield f"| {' | '.join([*first, *gaps, f'{row[REACHED]:.0%}', row['settings']])} |"
    yield ""


def _gap(row: pd.Series, metric: str) -> str:
    """A difference and its 95 % interval."""
    mean, low, high, p = (row[f"{metric}, {x}"] for x in ("difference", "low", "high", "p Holm"))
    if pd.isna(low):
        return "-"
    mark = "**" if p < 0.05 else ""
    return f"{mark}{mean:+.3f}{mark} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

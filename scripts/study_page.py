"""What docs/study shows of its results.csv files, for `make docs`: tables, report.md, figures.

docs/board.md has a table between `<!-- board: REGIME -->` and `<!-- end -->`.
"""

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path

from nemo_algos.lab.study import design, report, tuning
from nemo_algos.lab.study.runner import results

DOCS = Path(__file__).parents[1] / "docs"
FOLDER, BOARD = DOCS / "study", DOCS / "board.md"
SHOWN = {"full": ".", "mismatch": "mismatch", "board": "board"}  # studies, and where theirs lie
TABLE = re.compile(r"(?<=<!-- board: )(\w+)( -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
AT = "pass@16 at equal reward"


def board() -> str:
    """docs/board.md with the tables of board.csv."""
    with open(FOLDER / "board" / "board.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    def table(found: re.Match[str]) -> str:
        own = [row for row in rows if row["regime"] == found[1]]
        return f"{found[1]}{found[2]}" + "\n".join(lines(own))

    return TABLE.sub(table, BOARD.read_text())


def lines(rows: list[dict[str, str]]) -> Iterator[str]:
    """A regime's table: the highest pass@1 first. Bold: by Holm's p below .05."""
    yield f"| method | models | pass@1 | to GRPO | {AT}, to GRPO | reach it | settings |"
    yield "|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: -float(row["pass@1"])):
        first = [row["arm"], row["pass@1, n"], f"{float(row['pass@1']):.3f}"]
        gaps = [gap(row, metric) for metric in ("pass@1", AT)]
        last = [f"{float(row['reached equal reward']):.0%}", row["settings"]]
        yield f"| {' | '.join([*first, *gaps, *last])} |"


def gap(row: dict[str, str], metric: str) -> str:
    """A difference and its 95 % interval."""
    names = ("difference", "low", "high", "p Holm")
    mean, low, high, p = (float(row[f"{metric}, {name}"]) for name in names)
    if math.isnan(low):
        return "-"
    mark = "**" if p < 0.05 else ""
    return f"{mark}{mean:+.3f}{mark} ({low:+.3f} to {high:+.3f})"


def main(folder: Path = FOLDER) -> None:
    for name, place in SHOWN.items():
        study, own = design.load(f"study/{name}.yaml", []), folder / place
        rows = results(own / "results.csv")
        study = tuning.tune(study, lambda part, rows=rows: rows)
        report.show(study, design.runs(study)[1], name, own)


if __name__ == "__main__":
    main()
    BOARD.write_text(board())

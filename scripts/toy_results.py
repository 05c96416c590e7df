"""docs/papers/toy.json: the toy's numbers of each paper, for scripts/paper_pages.py.

uv run nemo-algos replicate --toy --out runs/toy     # some minutes; the seed is local.yaml's
uv run scripts/toy_results.py runs/toy/toy-report
"""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

OUT = Path(__file__).parents[1] / "docs" / "papers" / "toy.json"
Line = tuple[str, str, str, str]  # item, run, metric, number with its interval


def lines(report: Path) -> Iterator[Line]:
    """Of a paper's report: each number of a table once, and the last one of each curve."""
    seen = set[Line]()
    for path in sorted(report.glob("*.csv")):
        for line in _lines(path):
            if ("", *line[1:]) not in seen:
                seen.add(("", *line[1:]))
                yield line


def _lines(path: Path) -> Iterator[Line]:
    item = path.stem.partition("_")[0]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and "ours" in rows[0]:
        for row in (row for row in rows if row["ours"]):
            about = row["row"] if row["row"] not in ("", row["run"].split("/")[-1]) else ""
            label = f"{row['run']}{f' ({about})' if about else ''}"
            yield item, label, row["column"].split()[-1], _number(row["ours"], row)
    elif rows and "step" in rows[0]:
        for row in {row["series"]: row for row in rows}.values():
            metric = path.stem.partition("_")[2]
            yield (
                item,
                row["series"],
                f"{metric}, step {float(row['step']):g}",
                _number(row["value"], row),
            )


def _number(value: str, row: dict[str, str]) -> str:
    ends = [f"{float(row[end]):.3g}" for end in ("low", "high") if row[end]]
    return f"{float(value):.3g}" + (f" ({ends[0]} to {ends[1]})" if len(ends) == 2 else "")


if __name__ == "__main__":
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    for report in (path for path in Path(sys.argv[1]).iterdir() if (path / "index.html").exists()):
        known[report.name] = list(lines(report))
    OUT.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")

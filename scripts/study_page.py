"""What docs/study shows of its results.csv files, for `make docs`: tables, report.md, figures."""

from pathlib import Path

from nemo_algos.lab.study import design, report, tuning
from nemo_algos.lab.study.runner import results

FOLDER = Path(__file__).parents[1] / "docs" / "study"
SHOWN = {"full": ".", "mismatch": "mismatch"}  # studies, and where theirs lie


def main(folder: Path = FOLDER) -> None:
    for name, place in SHOWN.items():
        study, own = design.load(f"study/{name}.yaml", []), folder / place
        rows = results(own / "results.csv")
        study = tuning.tune(study, lambda part, rows=rows: rows)
        report.show(study, design.runs(study)[1], name, own)


if __name__ == "__main__":
    main()

"""What docs/study shows of its results.csv, for `make docs`: summary.csv, report.md, figures."""

from pathlib import Path

from nemo_algos.study import design, report, tuning
from nemo_algos.study.runner import results

FOLDER = Path(__file__).parents[1] / "docs" / "study"


def main(folder: Path = FOLDER) -> None:
    study = design.load("study/full.yaml", [])
    _, cells = design.runs(tuning.sweeps(study))
    study = tuning.chosen(study, cells, results(folder / "results.csv"))
    report.show(study, design.runs(study)[1], "full", folder)


if __name__ == "__main__":
    main()

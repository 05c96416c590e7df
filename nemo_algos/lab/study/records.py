"""Records of others: arms of a file beside a study's own, with the runs that they have made.

    records: {mine.yaml: runs/study/mine}      # in the study; the file's regimes bear its names

`nemo-algos study mine.yaml --verify 0.05` makes a twentieth of those runs again.
"""

import random
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.config import ConfigError, Finding
from nemo_algos.lab.study.design import Regime, Study, Trial, load
from nemo_algos.lab.study.runner import Row, results, train, write_table

TIMES = ("CPU seconds", "tokens_per_second", "time/")  # columns that begin so vary
ID = re.compile("[0-9a-f]{12}")
FILES = ("{}.jsonl", "{}.path.jsonl")


class Verified(NamedTuple):
    """A run made again; differing: its columns, written and found."""

    run: str
    differing: dict[str, tuple[object, object]]


def join(study: Study, folder: Path) -> Study:
    """The study with the records' arms; their finished runs are copied into its folder.

    Raises ConfigError where a record's regime is not one of the study's, or has an arm of its;
    ValueError for a folder that no study has written.
    """
    regimes, rows = dict(study.regimes), results(folder / "results.csv")
    for file, place in study.records.items():
        for name, theirs in load(file, []).regimes.items():
            regimes[name] = _joined(file, name, regimes.get(name), theirs)
        found = results(Path(place) / "results.csv")
        if strange := [run for run in found if not ID.fullmatch(run)]:
            what = f"records.{file}: {place} has a run {strange[0]!r}, which is not an id"
            raise ValueError(f"{what}. Use a folder that `nemo-algos study` has written.")
        for run in found.keys() - rows.keys():
            _copy(run, Path(place) / "raw", folder / "raw")
        rows = found | rows
    if study.records:
        write_table(folder / "results.csv", list(rows.values()))
    return study.model_copy(update={"regimes": regimes})


def _joined(file: str, name: str, own: Regime | None, theirs: Regime) -> Regime:
    key = f"records.{file}"
    if own is None or _frame(own) != _frame(theirs):
        what = f"its regime {name} is not the study's"
        raise ConfigError(
            [Finding(key, f"{what}. Copy that regime, change its arms and knobs only.")]
        )
    if twice := own.arms.keys() & theirs.arms.keys() - {own.baseline}:
        what = f"regimes.{name}.arms has {', '.join(sorted(twice))} already"
        raise ConfigError([Finding(key, f"{what}. Use other names.")])
    tune = own.tune
    if tune and theirs.tune:
        tune = tune.model_copy(update={"knobs": theirs.tune.knobs | tune.knobs})
    return own.model_copy(update={"arms": theirs.arms | own.arms, "tune": tune})


def _frame(regime: Regime) -> dict[str, Any]:
    """All but its arms."""
    return regime.model_dump(exclude={"arms": True, "tune": {"knobs"}})


def _copy(run: str, source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in (file.format(run) for file in FILES):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def verify(
    trials: Sequence[Trial], folder: Path, share: float, again: Path, processes: Executor
) -> Iterator[Verified]:
    """Make a random share of the finished runs again, at least one. again: a folder for them."""
    rows = results(folder / "results.csv")
    columns = {name for row in rows.values() for name in row}  # a column may be younger
    finished = [trial for trial in trials if trial.id in rows]
    chosen = random.SystemRandom().sample(finished, ceil(share * len(finished)))
    (again / "raw").mkdir(parents=True, exist_ok=True)
    for future in as_completed([processes.submit(train, trial, again) for trial in chosen]):
        row = future.result()
        found = {n: x for n, x in row.items() if n in columns}
        yield Verified(str(row["id"]), _differing(rows[str(row["id"])], found))


def _differing(written: Row, found: Row) -> dict[str, tuple[object, object]]:
    names = {n for n, x in found.items() if x != "" and not n.startswith(TIMES)}  # "": not written
    return {n: (written.get(n), found[n]) for n in names if written.get(n) != found[n]}

"""Rows of a NeMo-RL run's own files: enough of them, and with the keys that are read."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from nemo_algos.config import Finding, did_you_mean
from nemo_algos.engines.data.rows import Row, load
from nemo_algos.preflight.check.keys import ENVIRONMENTS
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import error, warning
from nemo_algos.preflight.check.rules.data import datasets

READ = (".csv", ".json", ".jsonl", ".parquet")
LARGEST = 64 << 20  # bytes of a file that is read here
KEYS = {"input_key": "input", "output_key": "output"}  # of NeMo-RL's ResponseDataset


def row_keys(run: Preflight) -> Iterator[Finding]:
    """Every row has the problem and the answer under the keys that the data set names."""
    for path, data in datasets(run):
        rows = _rows(data) or []
        if rows and "messages" in rows[0].values:
            continue
        for name, usual in KEYS.items():
            key = str(data.get(name) or usual)
            if lacking := next((row for row in rows if row.get(key) is None), None):
                near = did_you_mean(key, [str(k) for k in lacking.values if k != key])
                what = f"{lacking.where} has no value for {key!r}{near}"
                yield error(f"{path}.{name}", f"{what}. Name another key, or correct the row.")


def enough_rows(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL drops an incomplete batch, so fewer rows than prompts make no step at all."""
    left = [_left(data) for path, data in datasets(run) if path == "data.train"]
    apart = run["data.use_multiple_dataloader"]
    path = "data.num_prompts_per_dataloader" if apart else "grpo.num_prompts_per_step"
    prompts = int((run[path] or 0) * run.oversampling)
    rows = [number for number in left if number is not None]
    if rows and len(rows) == len(left) and (min if apart else sum)(rows) < prompts:
        what = f"a batch takes {prompts} prompts, but `data.train` has {sum(rows)} training rows"
        reason = "NeMo-RL drops incomplete batches, so no step would be made"
        yield error(path, f"{what}. {reason}. Lower it, or add rows.")


def validation_environment(run: Preflight) -> Iterator[Finding]:
    """Validation on other data than training's is graded by what grades them, not by default."""
    trained = {data.get("dataset_name") for path, data in datasets(run) if path == "data.train"}
    usual = run["data.default.env_name"]
    own = run["data.validation"] or []
    for section in own if isinstance(own, list) else [own]:
        silent = isinstance(section, Mapping) and not section.get("env_name")
        name = silent and section.get("dataset_name")
        if name and usual and usual not in ENVIRONMENTS and name not in trained:
            what = f"{name} would be graded by {usual}, the training environment of `data.default`"
            cure = f"Set the one that you mean, {usual} or another."
            yield warning("data.validation.env_name", f"{what}. {cure}")


def _left(data: Mapping[str, Any]) -> int | None:
    """Rows to train on, less those split off for validation; None where they are not known."""
    rows, share = _rows(data), data.get("split_validation_size") or 0
    if rows is None or not isinstance(share, (int, float)):
        return None
    return len(rows) - int(share if share >= 1 else share * len(rows))


def _rows(data: Mapping[str, Any]) -> list[Row] | None:
    """The rows of a file that is here; None of other data, and of what NeMo-RL may yet read."""
    file = Path(str(data.get("data_path") or "."))
    known = data.get("dataset_name") == "ResponseDataset" and file.suffix in READ
    try:
        small = known and file.is_file() and file.stat().st_size <= LARGEST
        return _load(file, file.stat().st_mtime_ns) if small else None
    except (OSError, ValueError):  # json lines in a .json, for one, which NeMo-RL reads
        return None


@lru_cache(maxsize=8)
def _load(file: Path, changed: int) -> list[Row]:
    return load(str(file))[0]

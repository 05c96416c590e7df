"""The data sets of a NeMo-RL run, their rows where they are here, and the last step."""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from nemo_algos.engines.data.rows import Row, load
from nemo_algos.findings import sections_of
from nemo_algos.preflight.check.layout import Run

READ = (".csv", ".json", ".jsonl", ".parquet")
LARGEST_FILE = 64 << 20  # bytes of a file that is read here
SMALL = {"AIME2024": 30, "AIME2025": 30, "AIME2026": 30}  # rows of data sets of NeMo-RL
LARGEST = 1e15  # of any number


def datasets(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """Each dataset's path and keys, the defaults filled in."""
    default = run["data.default"] or {}
    sets = []
    for name in ("train", "validation"):
        for one in sections_of(run[f"data.{name}"]):
            sets.append((f"data.{name}", {**default, **one}))
    return sets


def last_step(run: Run) -> int:
    """The step that ends the run: a synchronous trainer stops with its epochs, too.

    Where the number of rows is not known here, it is that of grpo.max_num_steps.
    """
    most = run["grpo.max_num_steps"]
    apart = run["data.use_multiple_dataloader"]
    prompts = int((run["grpo.num_prompts_per_step"] or 0) * run.oversampling)
    if run.controlled or run["grpo.async_grpo.enabled"] or apart or prompts <= 0:
        return most
    steps = sum(training_rows(run)) // prompts * (run["grpo.max_num_epochs"] or 1)
    return min(most, steps) if steps else most


def split_off(size: float, rows: int) -> int:
    """Rows that are split off: a share of them, rounded up, or a number."""
    return int(size) if size >= 1 else ceil(size * rows)


def training_rows(run: Run) -> list[int]:
    """Rows of each training set, less those split off; none where one is not known."""
    left = list[int]()
    for path, data in datasets(run):
        if path != "data.train":
            continue
        rows = SMALL.get(str(data.get("dataset_name")), 0) or len(rows_of(data) or ())
        size = data.get("split_validation_size") or 0
        if not rows or not is_number(size):
            return []
        left.append(rows - split_off(size, rows))
    return left


def validation_rows(run: Run) -> int:
    """Rows of validation, also those split off for it; 0 where some are not known."""
    found = []
    for path, data in datasets(run):
        rows = len(rows_of(data) or ())
        size = data.get("split_validation_size") or 0
        if path == "data.validation":
            found.append(rows)
        elif size:
            found.append(split_off(size, rows) if is_number(size) else 0)
    return sum(found) if all(found) else 0


def rows_of(data: Mapping[str, Any]) -> list[Row] | None:
    """The rows of a file that is here; None of other data, and of what NeMo-RL may yet read."""
    file = Path(str(data.get("data_path") or "."))
    known = data.get("dataset_name") == "ResponseDataset" and file.suffix in READ
    try:
        small = known and file.is_file() and file.stat().st_size <= LARGEST_FILE
        if small:
            return _load(file, file.stat().st_mtime_ns)
        return None
    except (OSError, ValueError):  # json lines in a .json, for one, which NeMo-RL reads
        return None


@lru_cache(maxsize=8)
def _load(file: Path, changed: int) -> list[Row]:
    return load(str(file))[0]


def is_number(value: Any) -> bool:
    """Neither a flag, nor beyond all that occurs, nor infinite, nor no number."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and -LARGEST < value < LARGEST

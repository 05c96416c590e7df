"""A run's folder: of one process at a time, and gone where nothing was trained."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from nemo_algos.jsonl import lock_folder, refuse_links_out

RECORD = "metrics.jsonl"  # is there from the first finished step on
HELD = "training in"


@contextmanager
def open_folder(folder: Path | None, log_dir: Path) -> Iterator[Path]:
    """This folder, else a new one below log_dir; a new one without a step is removed at the end.

    Raises ValueError where another process trains there, or a link leads out of it.
    """
    new = folder is None or not folder.exists()
    if folder is None:
        folder, lock = _create_numbered(log_dir)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links_out(folder)
        lock = lock_folder(folder, HELD)
    try:
        with lock:
            yield folder
    finally:
        if new and not (folder / RECORD).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _create_numbered(log_dir: Path) -> tuple[Path, IO[str]]:
    """The first free one of log_dir/exp_001, exp_002, ..., as NeMo-RL numbers them.

    The last is free where its process was killed before a step.
    """
    taken = [int(p.name[4:]) for p in log_dir.glob("exp_*") if p.name[4:].isdigit()]
    for number in count(max(taken, default=1)):
        folder = log_dir / f"exp_{number:03d}"
        ended = (folder / "lock").is_file() and not (folder / RECORD).exists()
        try:
            folder.mkdir(parents=True, exist_ok=ended)
            lock = lock_folder(folder, HELD)
        except (FileExistsError, ValueError):  # another process's, or a run's
            continue
        if not (folder / RECORD).exists():
            return folder, lock
        lock.close()
    raise AssertionError

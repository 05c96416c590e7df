"""Rows of a data set of the hub or of a folder, by the package datasets, and of parquet files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_algos.config import first_line, install

SAVED = ("state.json", "dataset_dict.json")  # what save_to_disk leaves in a folder


def rows_of(
    name: str, subset: str | None = None, split: str | None = None
) -> tuple[list[dict[str, Any]], str]:
    """The rows of a split, and its fingerprint.

    name: of the hub, or a folder: of save_to_disk's, or of files as the hub has them. split: may be
    left out where there is only one. Raises ValueError where there are none.
    """
    datasets = _package(name)
    datasets.disable_progress_bars()
    try:
        if any((Path(name) / file).exists() for file in SAVED):
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the hub's, the network's, or the file format's own classes
        asked = " ".join(filter(None, [name, subset, split]))
        where = "" if Path(name).exists() else ", neither from the hub nor as a file"
        raise ValueError(f"cannot load {asked}{where}: {first_line(error)}") from None
    if isinstance(found, dict):
        wanted = next(iter(found)) if split is None and len(found) == 1 else split
        if wanted not in found:
            known = ", ".join(found)
            raise ValueError(f"{name} has no split {wanted!r}: set split to one of {known}")
        found = found[wanted]
    return [dict(values) for values in found], found._fingerprint


def parquet_rows(file: Path) -> Sequence[dict[str, Any]]:
    """The rows of a parquet file. Raises ValueError."""
    _package(str(file))
    import pyarrow.parquet  # with datasets

    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{file} is not a Parquet file: {first_line(error)}") from None


def _package(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{name} needs the package datasets, which is not installed: "
            f"{install('datasets')}, or use a .jsonl, .json or .csv file."
        ) from None
    return datasets

"""Pictures that stand in for a data set of images: rows in the layout of NeMo-RL's mmpr-tiny."""

import json
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.derived_config import PICTURED

COLOURS = ("red", "green", "blue", "white")
SIDE = 56  # of a picture, in pixels


def section(rows: Path) -> dict[str, Any]:
    """Of the rows (problem, answer) with a picture of one colour each, made beside their file."""
    folder = rows.with_name("pictures")
    if not (folder / ".mmpr_ready").exists():
        _write(rows, folder)
    own = {"dataset_name": "mmpr-tiny", "download_dir": str(folder), "split": "train"}
    return {**own, "processor": PICTURED}


def _write(rows: Path, folder: Path) -> None:
    """As mmpr_tiny.py reads it, which downloads where the mark .mmpr_ready is missing."""
    import pandas
    from PIL import Image

    folder.mkdir()
    for colour in COLOURS:
        Image.new("RGB", (SIDE, SIDE), colour).save(folder / f"{colour}.png")
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    table = {
        "images": [[{"path": f"{COLOURS[i % len(COLOURS)]}.png"}] for i in range(len(lines))],
        "extra_info": [{"question": line["problem"]} for line in lines],
        "reward_model": [{"ground_truth": line["answer"]} for line in lines],
    }
    pandas.DataFrame(table).to_parquet(folder / "mmpr_tiny.parquet")
    (folder / ".mmpr_ready").touch()

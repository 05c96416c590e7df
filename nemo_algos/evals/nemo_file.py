"""What NeMo-RL's evaluation saves (`eval.save_path`): its responses, for our metrics."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.evals.shapes import LARGEST

NAME = "evaluation_data.json"
TYPES = {"response": str, "reward": (int, float), "extra_env_info": str}


class Row(NamedTuple):
    """One response. prompt: as the model read it, chat template included. answer: what the verifier
    compared with, None where the file has none. sample: 0, 1, ... among those of equal prompts."""

    prompt: str
    response: str
    reward: float
    sample: int
    answer: str | None


def read(path: str | Path) -> list[Row]:
    """The rows in the order of the file.

    path: the folder `save_path`, or its evaluation_data.json. NeMo-RL numbers samples through the
    whole run, and repeats of a prompt follow one another: `Row.sample` starts anew for each prompt.
    A prompt that occurs twice in the data set counts as one, with twice the samples.

    Raises:
        ValueError: the file is not there, or not what NeMo-RL writes.
    """
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: give eval.save_path of NeMo-RL's run") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON (was its run interrupted?): {error}") from None
    items = saved.get("evaluation_data") if isinstance(saved, dict) else None
    if not isinstance(items, list) or not items:
        raise ValueError(f"{path} has no list evaluation_data with an item: it is not NeMo-RL's")
    seen: Counter[str] = Counter()
    rows = []
    for number, item in enumerate(items):
        row = _row(path, number, item)
        rows.append(row._replace(sample=seen[row.prompt]))
        seen[row.prompt] += 1
    return rows


def _row(path: Path, number: int, item: Any) -> Row:
    fields = item if isinstance(item, dict) else {}
    wrong = [k for k, of in TYPES.items() if not isinstance(fields.get(k), of)]
    if "reward" not in wrong and not (-LARGEST < fields["reward"] < LARGEST):
        wrong.append("reward")  # NaN too
    if wrong or "prompt" not in fields:
        missing = ", ".join(wrong or ["prompt"])
        got = {key: fields[key] for key in wrong if key in fields}
        shown = f": {str(got)[:200]}" if got else ""
        raise ValueError(f"{path}: item {number} of evaluation_data has no right {missing}{shown}")
    prompt = fields["prompt"]
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)  # images: a list of parts
    answer = _answer(fields["extra_env_info"])
    return Row(text, fields["response"], float(fields["reward"]), 0, answer)


def _answer(written: str) -> str | None:
    # NeMo-RL writes str() of the metadata, a dictionary in most environments
    try:
        info = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    answer = info.get("ground_truth") if isinstance(info, dict) else None
    return None if answer is None else str(answer)

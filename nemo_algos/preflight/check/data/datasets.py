"""A run's data sets, loaded by NeMo-RL's own code; rows that stand in for those not at hand."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from nemo_algos.engines.nemo.derived_config import PICTURED, is_vlm, uses_gym
from nemo_algos.preflight.check.data.verdict import cut

SUMS = 64  # rows that stand in
LOCAL = (".arrow", ".csv", ".json", ".jsonl", ".parquet", ".txt")  # NeMo-RL's FILEEXT2TYPE
PATHS = ("data_path", "prompt_file", "system_prompt_file")
# keys of a data set that the rows in its place keep
KEPT = ("env_name", "prompt_file", "system_prompt_file", "split_validation_size", "seed")
COLOURS = ("red", "green", "blue", "white")
SIDE = 56  # of a picture, in pixels


class Absent(NamedTuple):
    """A data set that is not at hand; key: its section in the config."""

    key: str
    name: str
    reason: str


class Broken(Exception):
    """A data set that is here and cannot be read, or used; args: key, name, reason, section."""


class Loaded(NamedTuple):
    """NeMo-RL's processed data sets, by task or one for all.

    numbers: of their rows in the data set's own file, 1 for the first. environments: the name and
    section of what judges a task. sections: by task, for training and for validation, the path and
    keys of its data set. split_off: rows of training's files that NeMo-RL validates on.
    """

    train: list[Any]
    validation: Any
    numbers: dict[str, list[int]]
    environments: dict[str, tuple[str, Any]]
    sections: dict[str, dict[str, tuple[str, dict[str, Any]]]]
    absent: list[Absent]
    split_off: int


def stand_in(folder: Path, rows: str = "") -> Path:
    """Rows (problem, answer) as JSON lines in the folder: of the file `rows`, else 64 sums."""
    path = folder / "stand_in.jsonl"
    rng = random.Random(0)
    if rows:
        path.write_bytes(Path(rows).read_bytes())
        return path
    pairs = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(SUMS)]
    lines = []
    for a, b in pairs:
        lines.append({"problem": f"What is {a} + {b}?", "answer": str(a + b)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def home() -> Path:
    import nemo_rl

    return Path(str(nemo_rl.__file__)).parents[1]


def here(data: Any, nemo_rl: Path) -> Any:
    """The section `data` with paths that exist: from this folder, else from NeMo-RL's root."""
    if isinstance(data, list):
        return [here(one, nemo_rl) for one in data]
    if not isinstance(data, Mapping):
        return data
    found = {key: here(value, nemo_rl) for key, value in data.items()}
    for key in PATHS:
        name = found.get(key)
        if isinstance(name, str) and not Path(name).exists() and (nemo_rl / name).exists():
            found[key] = str(nemo_rl / name)
    return found


def load(config: Mapping[str, Any], tokenizer: Any, folder: Path, rows: str = "") -> Loaded:
    """All data sets of the run; rows: a file in place of those not at hand. Raises Broken."""
    from nemo_rl.data import utils

    # it fills in defaults
    data = copy.deepcopy(config["data"])
    gym = uses_gym(config.get("env"))
    with _patched(utils, config, data, lambda: stand_in(folder, rows)) as (loaded, absent):
        env = None if gym else config["env"]
        made = utils.setup_response_data(tokenizer, data, env, is_vlm=is_vlm(data))
    train, validation = made[:2]
    objects = [one for _, one in loaded]
    first = len(data["train"])
    held_out = []
    for one in objects[:first]:
        if one.val_dataset is not None:
            held_out.append(one.val_dataset)
    validated = [*held_out, *(one.dataset for one in objects[first:])]
    named = [(one.task_name, found) for found, one in loaded]
    return Loaded(
        train=list(train.values()) if isinstance(train, dict) else [train],
        validation=validation,
        numbers={
            "train": [n for one in objects[:first] for n in _numbers(one.dataset)],
            "validation": [n for one in validated for n in _numbers(one)],
        },
        environments={**made[3], **made[2]} if len(made) == 4 else {},
        sections={"train": dict(named[:first]), "validation": dict(named)},
        absent=absent,
        split_off=sum(len(one) for one in held_out),
    )


@contextmanager
def _patched(
    utils: Any, config: Mapping[str, Any], data: Mapping[str, Any], rows: Callable[[], Path]
) -> Iterator[tuple[list[tuple[Any, Any]], list[Absent]]]:
    """NeMo-RL's set-up with names for environments, and rows for what is not at hand.

    That is what is on a hub, or in a file that is not here.
    """
    loaded: list[tuple[Any, Any]] = []
    absent: list[Absent] = []
    original = utils.load_response_dataset
    vlm = is_vlm(data)

    def load_response_dataset(section: dict[str, Any]) -> Any:
        key = _key(data, section)
        try:
            try:
                made = original(section)
            except Exception as error:
                path = section.get("data_path")  # which not every data set has
                gone = path and not Path(path).exists()
                if not gone and not isinstance(_first(error), ConnectionError):
                    raise
                link = _link(rows(), len(absent))
                absent.append(Absent(key, name(section), _error_text(error)))
                own = {key: section[key] for key in KEPT if section.get(key) is not None}
                made = original({"processor": "math_hf_data_processor"} | of_rows(link, vlm) | own)
        except Exception as error:
            raise Broken(key, name(section), _error_text(error), section) from error
        made.val_dataset = getattr(made, "val_dataset", None)
        loaded.append(((key, section), made))
        return made

    def create_env(env_name: str, env_config: Any) -> Any:
        """Its name in the config: of images all are made as `vlm`."""
        return next(k for k, v in config["env"].items() if v is env_config), env_config

    with (
        patch.object(utils, "load_response_dataset", load_response_dataset),
        patch.object(utils, "create_env", create_env),
    ):
        yield loaded, absent


def name(section: Mapping[str, Any]) -> str:
    """Of a data set: its file, or its name on the hub or among NeMo-RL's own."""
    own = section.get("dataset_name")
    return str(section.get("data_path") if own == "ResponseDataset" else own)


def _link(rows: Path, count: int) -> Path:
    """The file under a name of its own: NeMo-RL names a task by it."""
    link = rows.with_name(f"{rows.stem}_{count}{rows.suffix}") if count else rows
    if not link.exists():
        link.symlink_to(rows)
    return link


def of_rows(rows: Path, sees: bool) -> dict[str, Any]:
    """A data set of a file of rows; sees: each with a picture."""
    if sees:
        return image_section(rows)
    keys = {"input_key": "problem", "output_key": "answer"}
    return {"dataset_name": "ResponseDataset", "data_path": str(rows), **keys}


def _key(data: Mapping[str, Any], section: Any) -> str:
    for name in ("train", "validation"):
        written = data.get(name) or []
        sections = written if isinstance(written, list) else [written]
        if any(one is section for one in sections):
            return f"data.{name}"
    return "data"


def _error_text(error: BaseException) -> str:
    first = _first(error)
    return cut(f"{type(first).__name__}: {first}")


def _first(error: BaseException) -> BaseException:
    """The error behind it; those that were raised of it only wrap it."""
    if error.__cause__:
        return _first(error.__cause__)
    return error


def _numbers(dataset: Any) -> list[int]:
    """Of its rows in the file: a split or shuffled data set knows them as its indices."""
    indices = getattr(dataset, "_indices", None)
    if indices is None:
        return list(range(1, len(dataset) + 1))
    return [n + 1 for n in indices.column(0).to_pylist()]


def image_section(rows: Path) -> dict[str, Any]:
    """Of the rows (problem, answer) with a picture of one colour each, made beside their file."""
    folder = rows.with_name("pictures")
    if not (folder / ".mmpr_ready").exists():
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
    own = {"dataset_name": "mmpr-tiny", "download_dir": str(folder), "split": "train"}
    return {**own, "processor": PICTURED}

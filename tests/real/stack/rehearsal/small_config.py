"""The small config of a run: the user's own, with the changes of downscale.py over it."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.findings import set_at
from nemo_algos.preflight.check.data import datasets
from nemo_algos.preflight.check.judge import judge, refuse
from nemo_algos.preflight.check.rule import Preflight
from rehearsal.downscale import Change

NAME = "miniature.yaml"
LONGEST = 256  # tokens of a prompt of it, also in bytes
PROMPT = "Put the result into \\boxed{{}}, and end with a line `Answer: ` and the result.\n{}"
ABSENT = "their data sets are not at hand: tests/real/stack/README.md"


def write(
    run: Preflight, written: DictConfig, changes: Iterable[Change], folder: Path, nemo_rl: Path
) -> Preflight:
    """Write miniature.yaml, and judge it. Raises ConfigError where a change made it wrong.

    Its policy and data replace NeMo-RL's base sections: what is given up must not come back by a
    merge, and a prompt file of NeMo-RL's own is found from any folder.
    """
    plain: Any = OmegaConf.to_container(written)
    plain["policy"] = {**deepcopy(run.plain["policy"]), "_override_": True}
    plain["data"] = {**datasets.here(run.plain["data"], nemo_rl), "_override_": True}
    for change in changes:
        set_at(plain, change.path, change.value)
    small = OmegaConf.create(plain)
    (folder / NAME).write_text(OmegaConf.to_yaml(small))
    rehearsed, findings = judge(small, run.nemo_rl)
    refuse(findings)
    return rehearsed


def stand_in(rows: Path | None, run: Preflight) -> Iterator[Change]:
    """Rows of a file in place of data sets that are not at hand."""
    if rows is None:
        return
    default = run["data.default"] or {}
    environment = default.get("env_name") or _first(run["data.train"]).get("env_name") or "math"
    prompt = rows.with_name("prompt.txt")
    prompt.write_text(PROMPT)
    own = {
        **datasets.of_rows(rows, is_vlm(run["data"])),
        "env_name": environment,
        "prompt_file": str(prompt),
        "system_prompt_file": None,  # it may be longer than the rows
        "split_validation_size": 0,
    }
    validated = run["data.validation"]
    if validated is None and _first(run["data.train"]).get("split_validation_size"):
        validated = {}
    for path, like in {"data.train": run["data.train"], "data.validation": validated}.items():
        value = own if like is not None else None
        yield Change(path, [value] if isinstance(like, list) else value, "given up", ABSENT)
    yield Change("data.use_multiple_dataloader", False, "given up", ABSENT)


def _first(section: Any) -> dict[str, Any]:
    return (section[0] if isinstance(section, list) else section) or {}

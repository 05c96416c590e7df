"""Tokenizer, data and rewards of a run as configured, in NeMo-RL's environment, without a worker.

    python -m nemo_algos.preflight.rehearsal.cheap FOLDER [STAGE...]

reads FOLDER/config.json, appends to FOLDER/verdicts.jsonl, and writes FOLDER/rows.json:
train, validation: rows, prompt_tokens (p50, p99, max, histogram), first_prompt; longest: prompt in
tokens; forms: by task a right response with {answer}; stand_in: the file of rows, or null. With
STAGE only those, and what they need.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.kinds import is_vlm
from nemo_algos.preflight.rehearsal import (
    datasets,
    prompts,
    reading,
    rewards,
    rows,
    scoring,
    tokenizing,
)
from nemo_algos.preflight.rehearsal.datasets import Broken, Loaded
from nemo_algos.preflight.rehearsal.rows import Row
from nemo_algos.preflight.rehearsal.scoring import Judge
from nemo_algos.preflight.rehearsal.stage import Stage

HUB = "Download it on a machine with a network, into the cache that HF_HOME names"
STAGES = ("tokenizer", "data", "rewards")
Judges = dict[str, Judge | str]


def main(folder: Path, only: Sequence[str] = STAGES) -> None:
    """The stages in their order, each as far as the one before it allows."""
    config = _read(folder)
    seen: dict[str, Any] = {"stand_in": None, "longest": 0, "forms": {}}
    reader = tokenizing.judge(Stage(folder, "tokenizer"), config)
    stage = Stage(folder, "data")
    loaded = _load(stage, config, reader, folder) if reader is not None else None
    if loaded is None:
        stage.unchecked("No row was read: the tokenizer or a data set does not load.")
        Stage(folder, "rewards").unchecked("No row was read, so no reward was tried.")
    else:
        with ExitStack() as stack:
            # they start while the rows are read
            judges = _judges(loaded, stack, is_vlm(config["data"])) if "rewards" in only else {}
            tokenizer = getattr(reader, "tokenizer", reader)
            good = reading.judge(stage, config, loaded, tokenizer, seen)
            stops = config["policy"]["generation"].get("stop_strings") or []
            asked = Stage(folder, "rewards")
            _rewards(asked, judges, loaded, good, tokenizer, seen, stops)
    (folder / "rows.json").write_text(json.dumps(seen))


def _read(folder: Path) -> dict[str, Any]:
    """The config, its files found as a run in this folder finds them."""
    config = json.loads((folder / "config.json").read_text())
    config["data"] = datasets.here(config["data"], datasets.home())
    return config


def _load(stage: Stage, config: Mapping[str, Any], reader: Any, folder: Path) -> Loaded | None:
    from nemo_algos.engines.nemo import environment

    environment.register(config.get("env") or {})
    try:
        loaded = datasets.load(config, reader, folder)
    except Broken as problem:
        key, name, reason, section = problem.args
        lines = rows.faults_in_file(section)
        where = f" {'; '.join(lines)}." if lines else ""
        stage.failed(f"`{key}`, {name}, does not load: {reason}.{where} Correct it.", key)
        return None
    for one in loaded.absent:
        own = config.get("rehearsal_rows") or f"{datasets.SUMS} sums"
        lent = f"{own} with pictures" if is_vlm(config["data"]) else own
        cure = "Put the file there" if Path(one.name).suffix in datasets.LOCAL else HUB
        stage.unchecked(
            f"`{one.key}`, {one.name}, is not available ({one.reason}). {lent} replace it, so its "
            f"own rows are not checked. {cure}, or name a file of rows (problem, answer) with "
            "--rows.",
            one.key,
        )
    return loaded


def _judges(loaded: Loaded, stack: ExitStack, sees: bool) -> Judges:
    """By environment, or the reason why no answer is known to it; on a Ray that ends with stack.

    sees: each is NeMo-RL's for images.
    """
    from nemo_rl.environments.utils import ENV_REGISTRY

    found: Judges = {}
    for name, section in loaded.environments.values():
        kind = "vlm" if sees else name
        reason = scoring.UNKNOWN.get(kind)
        if reason is None and kind not in ENV_REGISTRY:
            reason = "the script that starts the run registers it"
        if reason is None:
            stack.enter_context(scoring.ray_here())
        if name not in found:
            found[name] = reason or Judge(kind, section)
    return found


def _rewards(
    stage: Stage,
    judges: Judges,
    loaded: Loaded,
    good: list[Row],
    tokenizer: Any,
    seen: dict[str, Any],
    stops: Sequence[str],
) -> None:
    for name, judge in judges.items():
        tasks = [task for task, (env, _) in loaded.environments.items() if env == name]
        mine = [row for row in good if row.task in tasks]
        if isinstance(judge, str) or not mine:
            reason = judge if isinstance(judge, str) else "it has no row that can be used"
            stage.unchecked(f"`env.{name}`: {reason}, so no answer was tried.", f"env.{name}")
            continue
        shown = [prompts.render(row, tokenizer) for row in mine[: rewards.FEW] if row.tokens]
        form = rewards.judge(stage, name, judge, mine, shown, bool(loaded.absent), stops)
        if form:
            seen["forms"].update(dict.fromkeys(tasks, form))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or STAGES)

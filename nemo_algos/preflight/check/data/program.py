"""Tokenizer, data and rewards of a run as configured, by NeMo-RL's own code, without a worker.

    python -m nemo_algos.preflight.check.data.program FOLDER [--rows FILE] [--model FOLDER]

reads FOLDER/config.json, appends to FOLDER/verdicts.jsonl, and writes FOLDER/rows.json:
train, validation: rows, prompt_tokens (p50, p99, max, histogram), first_prompt; longest: prompt in
tokens; forms: by task a right response with {answer}; stand_in: the file of rows, or null.
It ends with its standard input, so that nothing stays behind a process that was killed.
"""

import argparse
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.preflight.check.data import (
    dataset_checks,
    datasets,
    rewards,
    rows,
    scoring,
    stand_in_tokenizer,
    tokenizer_checks,
)
from nemo_algos.preflight.check.data.datasets import Broken, Loaded
from nemo_algos.preflight.check.data.scoring import Judge, NemoJudge, VerifierJudge
from nemo_algos.preflight.check.data.verdict import Stage
from nemo_algos.preflight.check.known_models import FILE

HUB = "Download it on a machine with a network, into the cache that HF_HOME names"
STAGES = ("tokenizer", "data", "rewards")
Judges = dict[str, Judge | str]


def main(folder: Path, only: Sequence[str] = STAGES, own_rows: str = "", model: str = "") -> None:
    """The stages in their order, each as far as the one before it allows.

    own_rows: a file of rows in place of data sets that are not at hand, or ""; model: a folder in
    place of policy.model_name, or "".
    """
    config, asked = read_config(folder, model)
    seen: dict[str, Any] = {"stand_in": None, "longest": 0, "forms": {}}
    reader = tokenizer_checks.judge(Stage(folder, "tokenizer"), config, asked)
    stage = Stage(folder, "data")
    loaded = _load(stage, config, reader, own_rows) if reader is not None else None
    if loaded is None:
        stage.unchecked("No row was read: the tokenizer or a data set does not load.")
        Stage(folder, "rewards").unchecked("No row was read, so no reward was tried.")
    else:
        if loaded.absent:
            seen["stand_in"] = str(datasets.stand_in(folder, own_rows))
        with ExitStack() as stack:
            # they start while the rows are read
            judges = _judges(loaded, stack, is_vlm(config["data"])) if "rewards" in only else {}
            tokenizer = getattr(reader, "tokenizer", reader)
            good = dataset_checks.judge(stage, config, loaded, tokenizer, seen)
            stage = Stage(folder, "rewards")
            stops = config["policy"]["generation"].get("stop_strings") or []
            for name, judge in judges.items():
                tasks = [task for task, (env, _) in loaded.environments.items() if env == name]
                mine = [row for row in good if row.task in tasks]
                if isinstance(judge, str) or not mine:
                    reason = judge if isinstance(judge, str) else "it has no row that can be used"
                    stage.unchecked(
                        f"`env.{name}`: {reason}, so no answer was tried.", f"env.{name}"
                    )
                    continue
                few = [row for row in mine[: rewards.FEW] if row.tokens]
                shown = [dataset_checks.render(row, tokenizer) for row in few]
                form = rewards.judge(stage, name, judge, mine, shown, bool(loaded.absent), stops)
                if form:
                    seen["forms"].update(dict.fromkeys(tasks, form))
    (folder / "rows.json").write_text(json.dumps(seen))


def read_config(folder: Path, model: str = "") -> tuple[dict[str, Any], str]:
    """The folder's config, with paths as a run finds them and a tokenizer that is at hand.

    With it, the name of the tokenizer that the config asks for.
    """
    config = json.loads((folder / "config.json").read_text())
    config["data"] = datasets.here(config["data"], datasets.home())
    section = config["policy"].get("tokenizer") or {}
    name = model or str(config["policy"]["model_name"])
    origin = Path(name) if (Path(name) / FILE).is_file() else stand_in_tokenizer.cached_folder(name)
    values = json.loads((origin / FILE).read_text()) if origin else {}
    sees = is_vlm(config["data"]) or "vision_config" in values
    found = stand_in_tokenizer.find(section, origin, tokenizer_checks.stand_in(folder), sees)
    config["policy"]["tokenizer"] = {**section, "name": str(found)}
    return config, str(section.get("name") or name)


def _load(stage: Stage, config: Mapping[str, Any], reader: Any, own_rows: str) -> Loaded | None:
    try:
        loaded = datasets.load(config, reader, stage.folder, own_rows)
    except Broken as problem:
        key, name, reason, section = problem.args
        lines = rows.faults_in_file(section)
        where = f" {'; '.join(lines)}." if lines else ""
        stage.failed(f"`{key}`, {name}, does not load: {reason}.{where} Correct it.", key)
        return None
    for one in loaded.absent:
        own = own_rows or f"{datasets.SUMS} sums"
        lent = f"{own}{' with pictures' if is_vlm(config['data']) else ''}"
        cure = "Put the file there" if Path(one.name).suffix in datasets.LOCAL else HUB
        stage.unchecked(
            f"`{one.key}`, {one.name}, is not available ({one.reason}). {lent} replace it, so its "
            f"own rows are not checked. {cure}, or name a file of rows (problem, answer) with "
            "--rows.",
            one.key,
        )
    return loaded


def _judges(loaded: Loaded, stack: ExitStack, sees: bool) -> Judges:
    """A judge for each environment, or the reason why no answer is known to it.

    sees: each is NeMo-RL's for images. Their processes, and a Ray if one is needed, end with the
    stack.
    """
    from nemo_rl.environments.utils import ENV_REGISTRY

    found: Judges = {}
    for name, section in dict(loaded.environments.values()).items():
        kind = "vlm" if sees else name
        judge = scoring.UNKNOWN.get(kind, "the script that starts the run registers it")
        if "verifier" in section and not sees:
            judge = VerifierJudge(section)
        elif kind in ENV_REGISTRY and kind not in scoring.UNKNOWN:
            stack.enter_context(scoring.ray_here())
            judge = NemoJudge(kind, section)
        if isinstance(judge, Judge):
            stack.callback(judge.close)
        found[name] = judge
    return found


def _end_with_stdin() -> None:
    """Interrupt this process, so that it ends what it started, when its standard input closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("folder", type=Path)
    words.add_argument("--rows", default="")
    words.add_argument("--model", default="")
    given = words.parse_args()
    _end_with_stdin()
    main(given.folder, own_rows=given.rows, model=given.model)

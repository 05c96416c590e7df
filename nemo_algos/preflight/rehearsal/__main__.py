"""`python -m nemo_algos.preflight.rehearsal FOLDER`, in the rehearsal's environment: all stages.

FOLDER/request.json says what is asked (request.py); verdicts are appended as they come.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.kinds import is_vlm
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.snapshot import load
from nemo_algos.preflight.rehearsal import (
    config,
    datasets,
    fold,
    miniature,
    ray_head,
    readers,
    verdict,
)
from nemo_algos.preflight.rehearsal.fold import Change, changes
from nemo_algos.preflight.rehearsal.request import Request
from nemo_algos.preflight.rehearsal.stack import Stack, started
from nemo_algos.preflight.rehearsal.verdict import Verdict

FORMS = "NEMO_ALGOS_ANSWERS"  # names the file that cpu/nemo_cpu/answers.py reads
CHEAP = ("tokenizer", "data", "rewards")


def main(folder: Path) -> None:
    """The stages that are asked for; what the stack needs starts while the rows are read."""
    request = Request.read(folder)
    run, _ = judge(request.written(), load(request.version))
    values, origin = miniature.read_config(request.model or str(run["policy.model_name"]))
    sees = is_vlm(run["data"]) or "vision_config" in values
    tokenizer = readers.find(run["policy.tokenizer"] or {}, origin, folder / "tokenizer", sees)
    rows = start_rows(run, request, tokenizer, folder)
    if not request.wants("stack"):
        judge_rows(rows, folder)
        return
    if reason := fold.refusal(run) or miniature.refusal(values, run.layout.backend):
        judge_rows(rows, folder)
        hint = "What needs no model can be: --only tokenizer,data,rewards."
        message = f"This run cannot be rehearsed on a CPU: {reason}. {hint}"
        why = {"refused": reason}
        verdict.add(folder, Verdict("model", "failed", message, "policy.model_name", 0, why))
        return
    os.environ[FORMS] = str(folder / "forms.json")
    first = started("first", folder, os.environ)
    gpus = fold.count_gpus(run, fold.fold_sizes(run, request.ranks))
    with ray_head.head(folder, os.environ, gpus, Path.cwd()) as address:
        seen = judge_rows(rows, folder)
        mini = shrink(run, request, values, tokenizer, seen, folder)
        stack = Stack(
            mini, folder, os.environ | address, request.steps, lent=bool(seen.get("stand_in"))
        )
        stack.waiting["first"] = first
        stack.rehearse(lambda found: verdict.add(folder, found))


def start_rows(
    run: Preflight, request: Request, tokenizer: Path, folder: Path
) -> "subprocess.Popen[bytes]":
    """Tokenizer, data and rewards, in a process of their own."""
    own = {**(run["policy.tokenizer"] or {}), "name": str(tokenizer)}
    plain = {
        **run.plain,
        "policy": {**run["policy"], "tokenizer": own},
        "rehearsal_rows": request.rows,
    }
    (folder / "config.json").write_text(json.dumps(plain, default=str))
    stack = request.wants("stack")  # which needs them all
    asked = [stage for stage in CHEAP if stage in request.only and not stack]
    words = [sys.executable, "-m", "nemo_algos.preflight.rehearsal.cheap", str(folder), *asked]
    with open(folder / "cheap.log", "wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)


def judge_rows(rows: "subprocess.Popen[bytes]", folder: Path) -> dict[str, Any]:
    """What the stack needs of them, once they have been read."""
    if rows.wait():
        lines = (folder / "cheap.log").read_text(errors="replace").splitlines()[-1:]
        verdict.add(folder, Verdict("data", "failed", f"{' '.join(lines)} ({folder}/cheap.log)"))
    found = folder / "rows.json"
    return json.loads(found.read_text()) if found.exists() else {}


def shrink(
    run: Preflight,
    request: Request,
    values: dict[str, Any],
    tokenizer: Path,
    seen: dict[str, Any],
    folder: Path,
) -> Preflight:
    """The miniature, its config, and how a right answer is written."""
    small = miniature.shrunk(values, readers.load(tokenizer))
    parameters = miniature.save(small, tokenizer, folder / "model")
    rows = Path(seen["stand_in"]) if seen.get("stand_in") else None
    longest = config.LONGEST if rows else seen["longest"]
    beside = Change("policy.tokenizer.name", str(folder / "model"), "scaled", "beside the model")
    changed = changes(run, request.ranks, longest, folder)
    listed = [*changed, *config.stand_in(rows, run), beside]
    mini = config.write(run, request.written(), listed, folder, datasets.home())
    message = f"A miniature of {values.get('model_type')} with {parameters:,} parameters."
    details = {"changes": [change._asdict() for change in listed]}
    verdict.add(folder, Verdict("model", "passed", message, details=details))
    forms = seen.get("forms", {})
    common = {"*": next(iter(forms.values()))} if rows and forms else {}
    Path(os.environ[FORMS]).write_text(json.dumps({**common, **forms}))
    return mini


if __name__ == "__main__":
    main(Path(sys.argv[1]))

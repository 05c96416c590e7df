"""`python -m rehearsal FOLDER`, in the harness's environment: all stages of a rehearsal.

FOLDER/request.json says what is asked (request.py); verdicts are appended as they come.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.data import datasets, program, scoring, stand_in_tokenizer, verdict
from nemo_algos.preflight.check.data.environment import PROGRAM
from nemo_algos.preflight.check.data.verdict import Verdict
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.release import read
from nemo_algos.preflight.check.rule import Preflight
from rehearsal import downscale, miniature, small_config
from rehearsal.downscale import Change, changes
from rehearsal.request import Request
from rehearsal.training_stages import Stack, started

FORMS = "NEMO_ALGOS_ANSWERS"  # names the file that cpu/nemo_cpu/answers.py reads


def main(folder: Path) -> None:
    """The stages that are asked for; what the stack needs starts while the rows are read."""
    request = Request.read(folder)
    run, _ = judge(request.written(), read(Path(request.nemo_rl)))
    values, _ = miniature.read_config(request.model or str(run["policy.model_name"]))
    rows = start_rows(run, request, folder)
    if not request.wants("stack"):
        judge_rows(rows, folder)
        return
    if reason := downscale.refusal(run) or miniature.refusal(values, run.layout.backend):
        judge_rows(rows, folder)
        message = f"This run cannot be rehearsed on a CPU: {reason}."
        why = {"refused": reason}
        verdict.add(folder, Verdict("model", "failed", message, "policy.model_name", 0, why))
        return
    os.environ[FORMS] = str(folder / "forms.json")
    first = started("first", folder, os.environ)
    gpus = downscale.count_gpus(run, downscale.fold_sizes(run, request.ranks))
    with scoring.head(folder, os.environ, gpus, Path.cwd()) as address:
        seen = judge_rows(rows, folder)
        config, _ = program.read_config(folder, request.model)
        tokenizer = Path(config["policy"]["tokenizer"]["name"])
        mini = shrink(run, request, values, tokenizer, seen, folder)
        stack = Stack(
            mini, folder, os.environ | address, request.steps, lent=bool(seen.get("stand_in"))
        )
        stack.waiting["first"] = first
        stack.rehearse(lambda found: verdict.add(folder, found))


def start_rows(run: Preflight, request: Request, folder: Path) -> "subprocess.Popen[bytes]":
    """Tokenizer, data and rewards, in a process of their own."""
    (folder / "config.json").write_text(json.dumps(run.plain, default=str))
    words = [sys.executable, "-m", PROGRAM, str(folder)]
    words += ["--rows", request.rows, "--model", request.model]
    with open(folder / "data.log", "wb") as log:
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)


def judge_rows(rows: "subprocess.Popen[bytes]", folder: Path) -> dict[str, Any]:
    """What the stack needs of them, once they have been read."""
    if rows.wait():
        lines = (folder / "data.log").read_text(errors="replace").splitlines()[-1:]
        verdict.add(folder, Verdict("data", "failed", f"{' '.join(lines)} ({folder}/data.log)"))
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
    small = miniature.shrunk(values, stand_in_tokenizer.load(tokenizer))
    parameters = miniature.save(small, tokenizer, folder / "model")
    rows = Path(seen["stand_in"]) if seen.get("stand_in") else None
    longest = small_config.LONGEST if rows else seen["longest"]
    beside = Change("policy.tokenizer.name", str(folder / "model"), "scaled", "beside the model")
    changed = changes(run, request.ranks, longest, folder)
    listed = [*changed, *small_config.stand_in(rows, run), beside]
    mini = small_config.write(run, request.written(), listed, folder, datasets.home())
    message = f"A miniature of {values.get('model_type')} with {parameters:,} parameters."
    details = {"changes": [change._asdict() for change in listed]}
    verdict.add(folder, Verdict("model", "passed", message, details=details))
    forms = seen.get("forms", {})
    common = {"*": next(iter(forms.values()))} if rows and forms else {}
    Path(os.environ[FORMS]).write_text(json.dumps({**common, **forms}))
    return mini


if __name__ == "__main__":
    main(Path(sys.argv[1]))

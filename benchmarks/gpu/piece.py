"""A piece: figures that are taken within a time, and written whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST = 10  # numbers of a list in a table
sys.path += [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests/real/stack")]

import timing  # noqa: E402
import torch  # noqa: E402


@dataclass
class Piece:
    """What a piece knows while it runs: its name, where it writes, when it must end.

    out: also holds what pieces share: the start model, the folders of NeMo-RL's runs; on_cpu: runs
    in miniature; figures: numbers, lists by step, or sentences, by name.
    """

    name: str
    out: Path
    seconds: int
    on_cpu: bool = False
    figures: dict[str, Any] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.monotonic() - self.begin)

    @property
    def file(self) -> Path:
        """Its JSON."""
        return self.out / f"{self.name}.json"

    def python(self, name: str, *words: object, cwd: Path = ROOT, **more: str) -> str:
        """What a program of this interpreter prints, which also goes to NAME.log.

        Raises ValueError with its last lines where it fails.
        """
        log = self.out / f"{name}.log"
        with open(log, "wb") as file:
            status = subprocess.run(
                [sys.executable, *map(str, words)],
                cwd=cwd,
                env=environment(more),
                stdout=file,
                stderr=subprocess.STDOUT,
            ).returncode
        printed = log.read_text(errors="replace")
        if status:
            raise ValueError(f"{name} ended with status {status}: {printed[-1500:]}")
        return printed


def environment(more: dict[str, str]) -> dict[str, str]:
    """This process's, in which programs find this checkout, the benchmarks and NeMo-RL."""
    given = [os.environ.get(name, "") for name in ("NEMO_RL_HOME", "PYTHONPATH")]
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, given)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


@contextmanager
def measured(piece: Piece, needs_gpu: bool) -> Iterator[None]:
    """Within, the piece's time runs; its figures are written however it ends.

    Raises ValueError where there is no CUDA device and one is needed, TimeoutError at its end.
    """
    if needs_gpu and not torch.cuda.is_available():
        raise ValueError("no CUDA device here; --cpu runs a small version of most pieces")
    piece.out.mkdir(parents=True, exist_ok=True)
    if piece.on_cpu:
        piece.figures["size"] = "in miniature, on a CPU"
    signal.signal(signal.SIGALRM, _over)
    signal.alarm(piece.seconds)
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        piece.figures["ended by"] = f"{type(error).__name__}: {error}"[:2000]
        raise
    finally:
        signal.alarm(0)
        piece.figures["seconds of this piece"] = round(time.monotonic() - piece.begin, 1)
        timing.save(piece.file, piece.figures)


def _over(*_: object) -> None:
    raise TimeoutError("its time was over")


def table(folder: Path) -> Iterator[str]:
    """The lines of a Markdown table of each piece's figures."""
    for file in sorted(folder.glob("*.json")):
        found = json.loads(file.read_text())
        yield f"\n`{file.stem}`: {found['device']}, {found['date']}, commit {found['commit']}\n"
        yield "| figure | value |\n|---|---|"
        for name, value in found["figures"].items():
            yield f"| {name} | {shown(value)} |"


def shown(value: Any) -> str:
    """A number with three digits, several separated by commas, a text in one line."""
    if isinstance(value, list):
        some = value if len(value) <= MOST else [*value[: MOST - 1], "...", value[-1]]
        return ", ".join(map(shown, some))
    return f"{value:.4g}" if isinstance(value, int | float) else " ".join(str(value).split())[:200]

"""Pieces that are programs of this checkout: kernels, products, engine, TRL, tests, imports."""

import csv
import json
import re
from pathlib import Path
from statistics import fmean

from piece import ROOT, Piece

BENCHMARKS = ROOT / "benchmarks"
STUDY = BENCHMARKS / "study"
SMALL = {
    "kernels": ("--positions", 64),
    "gemm": ("--tokens", 128, "--hidden", 256, "--inner", 256),
    "engine": (
        *("settings.policy.device=cpu", "settings.policy.shape=null"),
        *("settings.policy.taught.steps=20", "settings.policy.taught.device=cpu"),
        "settings.grpo.max_num_steps=1",
    ),
    "trl": ("--steps", 4, "--block", 2, "--threads", 1),
}
WORKERS = "nemo_rl.models.policy.workers.megatron_policy_worker"
LIBRARIES = ("torch", "ray", "transformers", "vllm.v1.engine.llm_engine")
LIBRARIES += ("transformer_engine.pytorch", "megatron.bridge", WORKERS, "nemo_rl.algorithms.grpo")
TIMED = "import sys, time, importlib; t = time.time(); importlib.import_module(sys.argv[1]); "
TIMED += "print('took', time.time() - t)"


def figures_of(piece: Piece, program: str, *sizes: object) -> None:
    """Adds those of a benchmark that writes its own JSON; sizes: of a GPU."""
    file = piece.out / f"{piece.name}.part"
    sized = SMALL[piece.name] if piece.on_cpu else ("--device", "cuda", *sizes)
    piece.python(piece.name, BENCHMARKS / program, "--json", file, *sized)
    piece.figures.update(json.loads(file.read_text())["figures"])
    file.unlink()


def kernels(piece: Piece) -> None:
    """Log-probs and entropies against a plain copy's bandwidth."""
    figures_of(piece, "entropy.py")


def gemm(piece: Piece) -> None:
    """Products in e4m3 blocks against bf16: error and time."""
    figures_of(piece, "fp8_gemm.py")


def trl(piece: Piece) -> None:
    """The embedded engine against TRL at 51 million parameters: tokens per second, in turns."""
    figures_of(piece, "engine_vs_trl.py", "--steps", 12, "--block", 3, "--threads", 1)


def engine(piece: Piece) -> None:
    """The study of four methods at 51 million parameters; goes on where it ended."""
    folder = piece.out / "study"
    words = [STUDY / "configs/gpu.yaml", f"out={folder}", *(SMALL["engine"] * piece.on_cpu)]
    try:
        piece.python("engine", STUDY / "run.py", *words)
    finally:
        piece.figures |= means(*folder.rglob("results.csv"))


def means(*tables: Path) -> dict[str, float]:
    """Each method's mean over its finished runs, of a study's results.csv."""
    rows = [row for table in tables for row in csv.DictReader(table.read_text().splitlines())]
    done = [row for row in rows if not row["failed"]]
    names = dict.fromkeys(row["method"] for row in done)
    return {
        f"{name}, {metric}": fmean(float(row[metric]) for row in done if row["method"] == name)
        for metric in ("pass@1", "pass@16", "entropy/exact")
        for name in names
    }


def tests(piece: Piece) -> None:
    """The tests that need a GPU: counts, and the names of those that fail."""
    words = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "addopts=")
    try:
        piece.python("tests", *words, "-n", 4, "tests/real/gpu")
    finally:
        piece.figures |= counts((piece.out / "tests.log").read_text(errors="replace"))


def counts(log: str) -> dict[str, object]:
    """Of pytest's verbose lines, also of a run that was ended: a test has one line."""
    found = re.findall(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|SKIPPED|ERROR) (\S+)", log, re.M)
    kinds = [kind for kind, _ in found]
    failed = [name for kind, name in found if kind in ("FAILED", "ERROR")]
    return {kind.lower(): kinds.count(kind) for kind in dict.fromkeys(kinds)} | {"names": failed}


def imports(piece: Piece) -> None:
    """Seconds of each library's import, first from a cold disk, then again.

    The first round reads into memory what a run of NeMo-RL imports four times.
    """
    for turn in ("first", "again"):
        for name in LIBRARIES:
            try:
                printed = piece.python("imports", "-W", "ignore", "-c", TIMED, name)
            except ValueError as error:
                piece.figures[f"{name}, {turn}"] = str(error).strip().splitlines()[-1]
            else:
                took = re.findall(r"took ([\d.]+)", printed)[-1]
                piece.figures[f"{name}, {turn}, s"] = float(took)

"""Times functions side by side, on one thread.

Every round runs each of them once, so that load on the machine cancels."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

Times = dict[str, list[float]]


def keep_pages() -> None:
    """Have glibc keep what was freed.

    It does so by itself in a process that has freed blocks of nearly 32 MiB before; else page
    faults, at random, cost more than the arithmetic.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest


def interleaved(functions: dict[str, Callable[[], object]], rounds: int) -> Times:
    """CPU seconds (user + system) of each call, after one round to warm up."""
    times: Times = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: seconds[1:] for name, seconds in times.items()}


def milliseconds(times: Times, name: str) -> float:
    """Median."""
    return 1e3 * statistics.median(times[name])


def ratio(times: Times, name: str, to: str) -> tuple[float, float, float]:
    """Median, lower and upper quartile of name's time over to's, round by round."""
    ratios = [a / b for a, b in zip(times[name], times[to], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def peak_memory(function: Callable[[], object]) -> int:
    """Bytes by which the process outgrows its present size while the function runs (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _status("VmRSS")
    result = function()
    del result
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x for x in lines if x.startswith(field)).split()[1])


VERSIONED = ("torch", "triton", "vllm", "megatron-core", "megatron-bridge", "transformer-engine")
VERSIONED += ("ray", "transformers", "trl")
HERE = Path(__file__).parent


def taken() -> dict[str, object]:
    """What figures are taken on: date, device, versions, and the commits of the two checkouts."""
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = {name: version(name) for name in VERSIONED if _installed(name)}
    nemo_rl = os.environ.get("NEMO_RL_HOME", "")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": card,
        "versions": versions | {"torch": torch.__version__},
        "commit": os.environ.get("NEMO_ALGOS_COMMIT") or _head(HERE),
        "nemo_rl": os.environ.get("NEMO_RL_COMMIT") or (_head(Path(nemo_rl)) if nemo_rl else ""),
    }


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _head(folder: Path) -> str:
    """The commit of a checkout; nothing where it is none."""
    words = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def save(file: Path | None, figures: Mapping[str, object]) -> None:
    """Figures as JSON with what they are taken on: the rows of `benchmarks/gpu/pieces.py table`."""
    if file:
        file.write_text(json.dumps(taken() | {"figures": dict(figures)}, indent=1) + "\n")


def machine() -> str:
    """What the figures were taken on."""
    info = Path("/proc/cpuinfo")
    models = (
        [x for x in info.read_text().splitlines() if "model name" in x] if info.exists() else []
    )
    cpu = models[0].split(":")[1].strip() if models else platform.processor()
    return f"{time.strftime('%Y-%m-%d')}, {cpu}, 1 thread, torch {torch.__version__}"

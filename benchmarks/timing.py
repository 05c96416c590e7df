"""Times functions side by side: one thread, every round runs each of them once, so that load on the machine cancels."""

from __future__ import annotations

import ctypes
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

Times = dict[str, list[float]]


def keep_pages() -> None:
    """Has glibc keep what was freed. Else page faults, at random, cost more than the arithmetic on either side."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest: 32 MiB


def interleaved(functions: dict[str, Callable[[], object]], rounds: int) -> Times:
    """CPU seconds (user + system) of each call, after one round to warm up."""
    times: Times = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: seconds[1:] for name, seconds in times.items()}


def ratio(times: Times, name: str, to: str) -> tuple[float, float, float]:
    """Median, lower and upper quartile of name's time over to's, round by round."""
    ratios = [a / b for a, b in zip(times[name], times[to], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def machine() -> str:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    return f"{time.strftime('%Y-%m-%d')}, {cpu}, 1 thread, torch {torch.__version__}"

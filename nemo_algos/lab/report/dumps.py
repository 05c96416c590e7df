"""Dumps of sampler and trainer log-probs as traces: ours, NeMo-RL's, verl's and TRL's.

The ratio is the trainer's to the sampler's, before any update: |log ratio| is |d|.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nemo_algos.engines.dumps.dump import read

KINDS = ("*.npz", "*.pt", "*.jsonl")
RESPONSES = 16  # of a file
DIGITS = 6


def files(folder: Path) -> list[Path]:
    """Those of a folder, or of its folder mismatch, in the order of their steps."""
    numbered = []
    for place in (folder, folder / "mismatch"):
        for kind in KINDS:
            numbered += [path for path in place.glob(kind) if re.search(r"\d", path.stem)]
    return sorted(numbered, key=_step)


def _step(path: Path) -> int:
    return int(re.findall(r"\d+", path.stem)[-1])


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """A line of trace.jsonl for each of the first responses. Raises ValueError as `read`."""
    dump = read(path)
    for row in range(min(len(dump.tokens), RESPONSES)):
        mask = dump.mask[row]
        if not mask.any():
            continue
        gap = (dump.trainer_logprobs - dump.sampler_logprobs)[row][mask].astype(np.float64)
        entropy = None if dump.entropy is None else dump.entropy[row][mask].tolist()
        yield {
            "step": _step(path),
            "group": 0,
            "prompt": f"{path.name}: trainer over sampler; tokens by id",
            "tokens": [f"{token} " for token in dump.tokens[row][mask].tolist()],
            "reward": 0.0,
            "cut": [False] * int(mask.sum()),
            "entropy": entropy,
            "advantage": [0.0] * int(mask.sum()),
            "ratio": [float(f"{x:.{DIGITS}g}") for x in np.exp(gap)],
            "low": None,
            "high": None,
        }

"""The share of a LoRA update that rounds away where refit merges it into weights of few digits.

Refit sends `W + alpha / dim * B A`. An element that changes by less than half the spacing of
BF16 at W is sent as it was, so that the rollouts do not see that part of the update.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from math import erf, frexp, ldexp, sqrt
from pathlib import Path
from statistics import NormalDist, mean
from typing import BinaryIO, NamedTuple

DIGITS = {"bfloat16": 8, "float16": 11}  # of a significand, the implicit one included
ASSUMED = NormalDist(0, 0.02).quantiles(400)  # the scale at which most models are initialised
TAKEN = 4096  # elements of a file's tensor


class Adapter(NamedTuple):
    """width: the layer's inputs; xavier: how A is initialised, else uniformly; B is 0 at first."""

    dim: int
    alpha: float
    width: int
    xavier: bool

    def update(self, moved: float) -> float:
        """The standard deviation of an update's elements, of A and B that moved so far."""
        spread = 2 / (self.width + self.dim) if self.xavier else 1 / (3 * self.width)
        return self.alpha / self.dim * moved * sqrt(self.dim * (spread + moved**2))


def unchanged(weights: Sequence[float], update: float, digits: int) -> float:
    """The share of normally distributed updates that are below half the spacing at the weights."""
    halves = (ldexp(1.0, frexp(weight)[1] - 1 - digits) for weight in weights if weight)
    return mean(erf(half / (update * sqrt(2))) for half in halves)


def stored(folder: Path) -> list[float]:
    """Elements of the linear layers in a folder's safetensors; none where there are none."""
    found = list[float]()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            found += _elements(file)
    return found


def _elements(file: BinaryIO) -> Iterator[float]:
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    for name, tensor in header.items():
        kind = {"BF16": "H", "F16": "e", "F32": "f"}.get(tensor.get("dtype"))
        if kind is None or not name.endswith("_proj.weight"):
            continue
        start, end = tensor["data_offsets"]
        file.seek(8 + size + start)
        read = file.read(min(end - start, TAKEN * struct.calcsize(kind)))
        values = struct.unpack(f"<{len(read) // struct.calcsize(kind)}{kind}", read)
        yield from (_bfloat16(v) for v in values) if kind == "H" else values


def _bfloat16(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]

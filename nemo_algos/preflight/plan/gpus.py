"""GPUs by name: bytes as the driver shows them, FLOP/s and bandwidth of the data sheets."""

from typing import NamedTuple


class GPU(NamedTuple):
    """Bytes of memory, dense BF16 FLOP/s, bytes per second of memory."""

    name: str
    memory: float
    flops: float
    bandwidth: float


SHEETS = (
    GPU("A100", 85e9, 312e12, 2.0e12),
    GPU("H100", 85e9, 989e12, 3.35e12),
    GPU("H200", 150e9, 989e12, 4.8e12),
    GPU("B200", 191e9, 2250e12, 7.7e12),
    GPU("GB200", 198e9, 2450e12, 8.0e12),
)
GPUS = {gpu.name: gpu for gpu in SHEETS}

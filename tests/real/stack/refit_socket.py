"""The socket that NeMo-RL's policy worker sends weights from, by this run's own name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from nemo_rl.utils.nvml import get_device_uuid

SECONDS = 120  # that a sender waits for the engine


@contextmanager
def bound() -> Iterator["zmq.Socket[bytes]"]:
    """As the worker's `maybe_init_zmq`; within, one engine may receive."""
    address = f"ipc:///tmp/{get_device_uuid(0)}.sock"
    socket = zmq.Context.instance().socket(zmq.REQ)
    for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
        socket.setsockopt(option, SECONDS * 1000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(address)
    try:
        yield socket
    finally:
        socket.close()
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)

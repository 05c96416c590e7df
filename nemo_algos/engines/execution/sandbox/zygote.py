"""Forks one locked-down process per program: `zygote.py control_fd namespaces|plain`, as a script.

Over the control socket: first what protects (JSON), or nothing where namespaces are refused; then
per program, its seconds of CPU time with its socket in, a byte in when it is to end, and out how it
did (ENDING). A fork takes 2 ms where a new interpreter takes 30.
"""

import gc
import json
import os
import signal
import socket
import struct
import sys
from importlib import import_module

import calls
import candidate
import lockdown

ENDING = "di"  # its CPU time in seconds; the signal that ended it, 0 if it left
# For the programs: it saves them time, and an interpreter in a home folder is out of reach for
# another user.
PRELOADED = """
    _strptime abc array ast asyncio base64 bisect calendar cmath collections contextlib copy csv
    dataclasses datetime decimal difflib encodings.idna enum fractions functools graphlib hashlib
    heapq inspect io itertools logging math numbers operator pathlib pprint queue random re secrets
    statistics string struct tempfile textwrap threading time traceback types typing unicodedata
    uuid zlib
"""


def main(control: socket.socket, namespaces: bool) -> None:
    """Serve until the judge's end of `control` closes."""
    sys.path.pop(0)  # this folder
    for name in PRELOADED.split():
        import_module(name)
    lock = lockdown.Lock(namespaces)
    gc.freeze()
    control.send(json.dumps(lock.protections + calls.protections()).encode())
    while True:
        message, descriptors, *_ = socket.recv_fds(control, 8, 1)
        if not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            _become(control, lock, descriptors[0], *struct.unpack("d", message))
        os.close(descriptors[0])
        control.recv(1)  # the judge is done with it, or gone
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        control.send(struct.pack(ENDING, seconds, os.WTERMSIG(status)))


def _become(control: socket.socket, lock: lockdown.Lock, descriptor: int, seconds: float) -> None:
    try:
        control.close()
        channel = socket.socket(fileno=descriptor)
        lock.confine(seconds)
        calls.restrict()
        candidate.plain.send(channel, "confined")
        candidate.serve(channel)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2] == "namespaces")

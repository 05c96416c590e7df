"""Forks one locked-down process per program: `zygote.py control_fd namespaces|plain`, as a script.

Over the control socket: first what protects (JSON), or nothing where namespaces are refused; then
per program, a byte with the program's socket in, a byte in when it is to end, a byte out when it
has. A fork takes 2 ms where a new interpreter takes 30.
"""

import gc
import json
import os
import signal
import socket
import sys
from importlib import import_module

import calls
import candidate
import lockdown

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
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        pid = os.fork()
        if pid == 0:
            _become(control, lock, descriptors[0])
        os.close(descriptors[0])
        control.recv(1)  # the judge is done with it, or gone
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        control.send(b"k")


def _become(control: socket.socket, lock: lockdown.Lock, descriptor: int) -> None:
    try:
        control.close()
        channel = socket.socket(fileno=descriptor)
        lock.confine()
        calls.refuse()
        candidate.plain.send(channel, "confined")
        candidate.serve(channel)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2] == "namespaces")

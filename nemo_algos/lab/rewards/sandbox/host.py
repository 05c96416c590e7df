"""The process that programs are forked from, as the judge starts and ends it."""

import ctypes
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from nemo_algos.lab.rewards.sandbox.program import Program, SandboxError

PATIENCE_SECONDS = 600.0  # for a zygote's start, or a program's end, on a busy machine
ENDING = "di"  # see zygote.py
SET_DUMPABLE = 4  # <linux/prctl.h>
ZYGOTE = str(Path(__file__).with_name("zygote.py"))
# Hash seed: a program that leans on the order of a set gets the same verdict in every worker.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}


class Sandbox:
    """A process that runs untrusted programs, one at a time, each in a fresh locked-down fork.

    namespaces: try them first; else, or where the system refuses them, the other protections have
    to do; `protections` says which are active.
    """

    def __init__(self, namespaces: bool = True):
        if sys.platform == "linux":
            # Without this, a program of the same user could read the judge's memory.
            ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)
        hello = self._start("namespaces") if namespaces else b""
        hello = hello or self._start("plain")
        if not hello:
            raise SandboxError("The sandbox for programs did not start.")
        self.protections: list[str] = json.loads(hello)

    @contextmanager
    def program(self, seconds: float) -> Iterator[Program]:
        """A fresh program that lives for the `with` block; `seconds` of CPU time are all it has.

        Raises SandboxError where the sandbox is broken: start another.
        """
        channel, theirs = socket.socketpair()
        with channel:
            with theirs:
                try:
                    socket.send_fds(self._control, [struct.pack("d", seconds)], [theirs.fileno()])
                except OSError as error:
                    raise SandboxError("The sandbox for programs has ended.") from error
            program = Program(channel, seconds)
            try:
                program.start()
                yield program
            finally:
                program.end(*self._end_program())

    def close(self) -> None:
        """End it and what runs in it."""
        self._control.close()
        self._process.wait(PATIENCE_SECONDS)

    def _start(self, mode: Literal["namespaces", "plain"]) -> bytes:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(PATIENCE_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", ZYGOTE, str(theirs.fileno()), mode],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # killed by its socket's end: time to kill the program
            )
        hello = self._control.recv(4096)
        if not hello:
            self.close()
        return hello

    def _end_program(self) -> tuple[float, int]:
        try:
            self._control.sendall(b"k")
            return struct.unpack(ENDING, self._control.recv(struct.calcsize(ENDING)))
        except (OSError, struct.error) as error:
            self._control.close()
            raise SandboxError("The sandbox for programs has ended.") from error

"""A running program as the judge sees it: asked, and never believed more than plain values.

`Sandbox` is the process that programs are forked from, as the judge starts and ends it.
"""

import builtins
import ctypes
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from nemo_algos.engines.execution.sandbox import plain
from nemo_algos.engines.rewards.pool import PATIENCE

# StopIteration would end a test's loop early, and `all(map(candidate, inputs))` would hold.
# MemoryError would look like the judge's own.
NOT_RAISED = (StopIteration, StopAsyncIteration, MemoryError)
PATIENCE_SECONDS = 600.0  # for a zygote's start, or a program's end, on a busy machine
ENDING = "di"  # see zygote.py
SET_DUMPABLE = 4  # <linux/prctl.h>
ZYGOTE = str(Path(__file__).with_name("zygote.py"))
# Hash seed: a program that leans on the order of a set gets the same verdict in every worker.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}


class SandboxError(RuntimeError):
    """The sandbox is broken; start another."""


class CandidateError(Exception):
    """An exception of the candidate's that is none of Python's, or that it has ended."""


class Program:
    """A running program that has `seconds` of CPU time, and PATIENCE times that of wall time.

    asked: how often it was asked something. failure: why it can be asked nothing more, "" where it
    can. Known at once: it is "gone", "stuck" (no answer in its wall time), "broken" (it said what
    no program should), or was "misused" (asked in what is no plain data, or in too much of it);
    known when it has ended: it was "late" (its CPU time was used up), or "killed" by another.
    """

    def __init__(self, channel: socket.socket, seconds: float):
        self._channel = channel
        self._seconds = seconds
        self._expires = time.monotonic() + seconds * PATIENCE
        self.asked = 0
        self.failure: Literal["", "gone", "stuck", "broken", "misused", "late", "killed"] = ""

    def start(self) -> None:
        """Wait until it is locked down; SandboxError where it could not be, and was not run."""
        try:
            confined = plain.receive(self._channel, self._seconds_left) == "confined"
        except TimeoutError:
            self.failure = "stuck"
            confined = True
        except ConnectionError:
            confined = False
        if not confined:
            raise SandboxError("A program could not be locked down, and was not run.")

    def end(self, used: float, number: int) -> None:
        """Take note that its process ended, after `used` seconds of CPU time, by that signal."""
        if used >= self._seconds or number in (signal.SIGPROF, signal.SIGXCPU):
            self.failure = "late"
        elif self.failure == "gone" and number == signal.SIGKILL:
            self.failure = "killed"

    def run(self, sources: list[str], script: bool = False) -> None:
        """Run its sources, one after the other, as one module; raises as `ask`.

        script: only compile them; each call of its `__main__` with stdin's text runs them, and
        gives what they write to stdout.
        """
        self._exchange([sources, script])

    def ask(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """Its answer to `what` (see candidate.ASKED) of `args`, as plain values and `Handle`s.

        What can change among `args` of a call that returns None is updated to what the program
        made of it (functions that work in place). Raises TypeError where an argument is no plain
        data, the nearest builtin class of what the program raised, or CandidateError.
        """
        self.asked += 1
        try:
            message = [what, *(plain.encode(part, _reference) for part in (list(args), kwargs))]
        except TypeError:
            self.failure = "misused"
            raise
        result, changed = self._exchange(message)
        # Else a program could change what its answer is compared with.
        if what == "call" and result is None:
            _update((args[1:], tuple(kwargs.values())), changed)
        return result

    def _exchange(self, message: list[Any]) -> tuple[Any, Any]:
        if not self.failure:
            try:
                self._channel.settimeout(self._seconds_left())
                plain.send(self._channel, message)
                status, *content = plain.receive(self._channel, self._seconds_left)
                if status == "ok":
                    value, changed = (plain.decode(part, self._handle) for part in content)
                    return value, changed
                name, text = map(str, content)
            except TimeoutError:
                self.failure = "stuck"
            except ConnectionError:
                self.failure = "gone"
            except MemoryError:
                raise
            except plain.TooLongError:
                self.failure = "misused"
            except Exception:
                self.failure = "broken"
            else:
                raise _exception(name, text)
        raise CandidateError(f"the program is {self.failure}")

    def _seconds_left(self) -> float:
        seconds = self._expires - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def _handle(self, reference: Any) -> "Handle":
        if not isinstance(reference, int | str):
            raise ValueError(f"the program sent an unknown reference: {reference!r}")
        return Handle(self, reference)


class Handle:
    """An object of the program's, by reference: attributes, calls and items are asked of it.

    It equals nothing but itself, whatever its class says over there.
    """

    def __init__(self, program: Program, reference: int | str):
        self.__dict__.update(_program=program, _reference=reference)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by copy, inspect and the like
            raise AttributeError(name)
        return self._program.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask("set", self, name, value)

    def __bool__(self) -> bool:
        return self._program.ask("bool", self) is True

    def __len__(self) -> int:
        return self._program.ask("len", self)

    def __getitem__(self, key: Any) -> Any:
        return self._program.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._program.ask("set item", self, key, value)

    def __contains__(self, key: Any) -> bool:
        return self._program.ask("contains", self, key) is True

    def __str__(self) -> str:
        return self._program.ask("str", self)

    def __iter__(self) -> "Handle":
        return self._program.ask("iter", self)

    def __next__(self) -> Any:
        try:
            return self._program.ask("next", self)
        except CandidateError as error:
            if str(error).startswith("StopIteration:"):
                raise StopIteration from None
            raise


def _reference(value: Any) -> int | str:
    if isinstance(value, Handle):
        return value._reference
    raise TypeError(
        f"A test passed a {type(value).__name__}. Pass plain data: numbers, texts, lists."
    )


def _update(old: Any, new: Any) -> None:
    """Give `old`, or what a tuple holds, the content that the program made of it."""
    if isinstance(old, tuple) and isinstance(new, list | tuple):
        for before, after in zip(old, new, strict=False):
            _update(before, after)
    for kind in (list, bytearray, deque, dict, set):
        if isinstance(old, kind) and isinstance(new, kind):
            held: Any = old
            held.clear()
            (held.update if kind in (dict, set) else held.extend)(new)


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in NOT_RAISED:
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and such want more
            pass
    return CandidateError(f"{name}: {text}")


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

"""A pool of killable processes around a verifier: no response can hang or crash the trainer."""

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import LifoQueue
from threading import Lock
from typing import Any, Literal, Self

Status = Literal["ok", "timeout", "error", "too_long", "memory"]

# The clock of verdicts is CPU time, so that they do not depend on the machine's load; wall time is
# a distant backstop, for what sleeps or waits and so uses no CPU time.
PATIENCE = 10.0  # seconds of wall time for each of CPU time
START_SECONDS = 600.0  # imports from a cold network disk are slow; the deadline is per item
AHEAD = 1024  # items judged ahead of the one that `scores` waits for, so that one may be slow


@dataclass(frozen=True)
class Verdict:
    """The outcome for one response: `reward` is the verifier's where `status` is "ok", else 0.0.

    `detail`: the exception, or how the process ended, where it is an "error" or a "timeout".
    `parts`: by name, what the reward is the weighted sum of.
    """

    reward: float
    status: Status
    detail: str = field(default="", compare=False)
    parts: "Mapping[str, Verdict]" = field(default_factory=dict, compare=False)


class Unjudged(Exception):
    """A reward function could judge no response of a batch: nothing would be learned from it."""


class VerifierPool:
    """Scores responses with a verifier in `workers` separate processes, started when first needed.

    It guards against responses that exhaust a verifier; `execution.code` locks down code in them.

    verify: "module:function", importable as in this process; deadline: seconds of CPU time that an
    item may take of its worker (whose start is not counted), and PATIENCE times that of wall time,
    past which its process group is killed; memory_mb: address space of a worker in MiB (all that it
    maps, so more than it touches); max_chars: a longer response is "too_long" and never sent.
    """

    def __init__(
        self,
        verify: str,
        workers: int = 1,
        deadline: float = 5.0,
        memory_mb: int = 2048,
        max_chars: int = 1_000_000,
    ):
        self.workers = workers
        self.deadline = deadline
        self.max_chars = max_chars
        self.counts: Counter[Status] = Counter()  # of every verdict since construction
        self._counting = Lock()
        self._command = [verify, str(memory_mb), str(deadline)]
        # Last in, first out: a small batch reuses the warm workers.
        self._idle: LifoQueue[_Process | None] = LifoQueue()
        self._vacate()

    def score(
        self, responses: Sequence[str], answers: Sequence[str], **more: Sequence[Any]
    ) -> list[Verdict]:
        """All verdicts, one per response, in order; more: see `scores`.

        Raises ValueError where the lists differ in length, or the verifier could not be loaded.
        """
        if len(responses) != len(answers):
            raise ValueError(
                f"got {len(responses)} responses but {len(answers)} answers: pass one for each."
            )
        return list(self.scores(responses, answers, **more))

    def scores(
        self, responses: Iterable[str], answers: Iterable[str], **more: Iterable[Any]
    ) -> Iterator[Verdict]:
        """One verdict per response, in order, each as soon as it and those before it are there.

        more: what else a verifier may name (see RewardFunction), one value per response, as JSON.
        Raises ValueError where the verifier could not be loaded, or one of them ends first.
        """
        threads = ThreadPoolExecutor(self.workers)
        names = ("response", "answer", *more)
        try:
            pending: deque[Future[Verdict]] = deque()
            for row in zip(responses, answers, *more.values(), strict=True):
                pending.append(threads.submit(self._judge, dict(zip(names, row, strict=True))))
                if len(pending) == AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Kill the workers and all they started; a later `score` starts new ones."""
        for _ in range(self.workers):
            process = self._idle.get()
            if process is not None:
                process.kill()
        self._vacate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _vacate(self) -> None:
        for _ in range(self.workers):
            self._idle.put(None)

    def _judge(self, given: dict[str, Any]) -> Verdict:
        verdict = Verdict(0.0, "too_long")
        if len(given["response"]) <= self.max_chars:
            process = self._idle.get()
            try:
                process = process or _Process(self._command)
                verdict = process.judge(given, self.deadline)
            finally:
                self._idle.put(process if process is not None and process.alive else None)
        with self._counting:
            self.counts[verdict.status] += 1
        return verdict


class _Process:
    def __init__(self, arguments: list[str]):
        # A fresh interpreter, because a fork of a process with torch's threads can deadlock. It
        # gets this import path; -P keeps the working directory from shadowing the stdlib.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "nemo_algos.engines.rewards.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        assert self._popen.stdin and self._popen.stdout
        self._requests = self._popen.stdin
        self._replies = self._popen.stdout
        line = self._read(START_SECONDS)
        if line != b'""\n':
            self.kill()
            reason = json.loads(line) if line else f"its process ended with {self._ending()}"
            raise ValueError(f"{arguments[0]!r} cannot be loaded as module:function: {reason}")

    @property
    def alive(self) -> bool:
        """Whether it can take another item."""
        return self._popen.returncode is None

    def judge(self, given: dict[str, Any], deadline: float) -> Verdict:
        """The verdict on one item; kills a worker that cannot go on."""
        line = b""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(given, default=str).encode() + b"\n")
            self._requests.flush()
            line = self._read(deadline * PATIENCE)
        if line:
            verdict = Verdict(*json.loads(line))
            if verdict.status == "memory":  # still held, it would fail the next items
                self.kill()
            return verdict
        self.kill()
        if self._popen.returncode == -signal.SIGPROF:
            return Verdict(0.0, "timeout", f"it exceeded {deadline:g} s of CPU time")
        if line is None or self._popen.returncode == -signal.SIGALRM:
            return Verdict(0.0, "timeout", f"it did not finish in {deadline * PATIENCE:g} s")
        return Verdict(0.0, "error", self._ending())

    def kill(self) -> None:
        """End its whole process group and reap it."""
        # The group before the wait: once reaped, its number may belong to another process.
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a dead leader
            os.killpg(self._popen.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            self._requests.close()
        self._replies.close()
        self._popen.wait()

    def _read(self, seconds: float) -> bytes | None:
        # Empty when the process has ended, None when time ran out. Not select(): it fails on
        # descriptors above 1023.
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        if not poller.poll(seconds * 1000):
            return None
        return os.read(self._replies.fileno(), 65536)

    def _ending(self) -> str:
        return f"exit code {self._popen.returncode} (negative: the signal that ended it)"

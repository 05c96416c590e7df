"""A run of NeMo-RL as a user starts it, in a folder of its own, watched from its first second.

Its figures are curves of TensorBoard, seconds to the places in its log where a phase ends, and
memory. On a machine without nvidia-smi tests/real/stack/rehearsal/cpu takes the GPU's place.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from piece import Piece
from rehearsal import machine
from rehearsal.reaper import reap
from rehearsal.training import Attempt, curves

from nemo_algos.preflight.check.data import scoring

HERE = Path(__file__).parent
KEEPING = (str(HERE / "keeping.py"),)  # programs, which wait for their words (prestart.py)
STOCK = (str(HERE / "stock.py"),)
STALE = (str(HERE / "first_weights.py"),)
PLAIN = ("-m", "rehearsal.prestart")
START = "recipes/cpu/countdown.yaml"
WIDE = ("policy.shape={width: 256, layers: 4, heads: 4, hidden: 768}",)
WIDE += ("policy.taught={steps: 400, device: cuda}",)
LONGEST = 40  # characters of a folder below which Ray's sockets have names that fit
PHASES = {  # what ends, and the words of the log that follow it, in their order
    "imports, config, Ray": "Connected to Ray cluster",
    "data, environment": "Setting up compute cluster",
    "cluster": "Setting up model and training",
    "vLLM's imports": "Initializing a V1 LLM engine",
    "vLLM's model": "Initializing lm_policy workers",
    "the trainer's imports and model": "Using vLLM backend for generation",
    "the rest of the setup": "SETUP COMPLETE",
    "the first refit and rollouts": "Processing rewards",
    "the first log-probs": "Training policy",
    "the first update": "Total step time",
}
BEGUN = re.compile(r"= Step (\d+)/\d+ =")
ALLOCATED = re.compile(r"GPU Memory [\w ]+: ([\d.]+)GB allocated, ([\d.]+)GB reserved")
CURVES = ("train/loss", "train/grad_norm", "train/reward", "train/lr", "train/mismatch/")
CURVES += ("train/token_mult_prob_error", "train/gen_kl_error", "timing/train/", "timing/setup/")
CURVES += ("validation/accuracy",)
NOT_ON_A_GPU = ("TORCHDYNAMO_DISABLE", "NEMO_CPU_SOCKET", "VLLM_CPU_KVCACHE_SPACE")
NOT_ON_A_GPU += ("VLLM_CPU_OMP_THREADS_BIND",)
ON_A_GPU = {
    "OMP_NUM_THREADS": "2",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "PYTHONUNBUFFERED": "1",
}


class Part(NamedTuple):
    """An attempt of a run, whose figures get a label.

    kill_at: a path in its folder; when it is there the attempt gets SIGKILL; stops_by: what it is
    to say when it ends itself, with an error.
    """

    program: Sequence[str] = KEEPING
    label: str = ""
    kill_at: str = ""
    stops_by: str = ""


class Run:
    """A run in OUT/NAME, which starts from OUT/start; its config is one of ./configs.

    In miniature that is CONFIG_cpu, else `cpu`.
    """

    def __init__(
        self, piece: Piece, name: str, config: str, *overrides: str, start: str = "start"
    ) -> None:
        self.piece = piece
        self.start = start
        self.name = name
        self.folder = piece.out / name
        file = HERE / "configs" / f"{config}.yaml"
        if piece.on_cpu:
            own = file.with_stem(f"{config}_cpu")
            file = own if own.exists() else file.with_stem("cpu")
        self.words = ["train", "--config", str(file)]
        self.words += ["logger.log_dir=logs", "logger.tensorboard_enabled=true", *overrides]
        self.seen: dict[str, float] = {}
        self.used: dict[str, list[float]] = {}
        self._begin = time.monotonic()
        self._read = 0

    @property
    def log(self) -> Path:
        """Of all its attempts."""
        return self.folder / "log"

    @property
    def done(self) -> Path:
        """There when it has ended well."""
        return self.folder / "done"

    def run(self, *parts: Part, **more: str) -> None:
        """The attempts, one after the other, on one Ray.

        Raises ValueError where one ends otherwise than it is to. Its figures are the piece's in
        any case.
        """
        if len(str(self.folder)) > LONGEST:
            raise ValueError(
                f"{self.folder} is too long a name for Ray's sockets: give --out of at most "
                f"{LONGEST - len(self.name) - 1} characters"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        start = self.folder / "start"
        if not start.exists():
            own = started(self.piece) if self.start == "start" else self.piece.out / self.start
            start.symlink_to(own)
        env = self._variables() | more
        first, *others = parts
        try:
            # imports of the driver, and Ray's start, side by side
            attempt = self._attempt(env, first.program)
            with scoring.head(self.folder, env, 1) as address:
                self._through(attempt, first, address)
                for part in others:
                    self._through(self._attempt(env, part.program), part, address)
        finally:
            reap(self.folder)
        self.done.touch()

    def _through(self, attempt: Attempt, part: Part, address: Mapping[str, str]) -> None:
        attempt.tell(self.words, address)
        status = 0
        try:
            if part.kill_at:
                self._watch(attempt, (self.folder / part.kill_at).exists)
                if attempt.process.poll() is not None:
                    raise ValueError(f"it ended before {part.kill_at}: {attempt.reason()}")
                attempt.process.kill()
            else:
                self._watch(attempt)
                status = attempt.process.wait()
        finally:
            self.keep(part.label)
        said = [line for line in self._said().splitlines() if part.stops_by in line]
        if part.stops_by:
            self.figure(f"{part.label}exit status, reason", [status, *said[-1:]])
            saved = sorted(path.name for path in self.folder.glob("results/step_*"))
            self.figure(f"{part.label}checkpoints", saved)
        if bool(status) != bool(part.stops_by) or not said:
            raise ValueError(
                f"{self.name} ended with status {status}: {attempt.last_lines()[-1500:]}"
            )

    def keep(self, prefix: str = "") -> None:
        """Its figures as they are now."""
        for name, curve in self.curves().items():
            self.figure(prefix + name, [curve[step] for step in sorted(curve)])
        self.figure(f"{prefix}steps begun", [int(step) for step in BEGUN.findall(self._said())])
        before = 0.0
        for name, at in self.seen.items():
            self.figure(f"{prefix}seconds of {name}", round(at - before, 1))
            before = at
        for name, used in self.used.items():
            self.figure(f"{prefix}MiB in use, least and most, in {name}", [min(used), max(used)])
        if found := ALLOCATED.findall(self.log.read_text(errors="replace")):
            peaks = [max(map(float, column)) for column in zip(*found, strict=True)]
            self.figure(f"{prefix}torch's memory, GB allocated and reserved", peaks)

    def curves(self) -> dict[str, dict[int, float]]:
        """Metrics by step, those of CURVES."""
        found = sorted(curves(self.folder).items())
        return {name: curve for name, curve in found if name.startswith(CURVES)}

    def figure(self, name: str, value: object) -> None:
        """One of the piece's."""
        self.piece.figures[f"{self.name}: {name}"] = value

    def _attempt(self, env: Mapping[str, str], program: Sequence[str]) -> Attempt:
        self.seen.clear()
        self.used.clear()
        self._begin = time.monotonic()
        self._read = self.log.stat().st_size if self.log.exists() else 0
        return Attempt(self.log, env, program, self.folder)

    def _watch(self, attempt: Attempt, there: Callable[[], bool] = lambda: False) -> None:
        """Waits for its end, or for what is to be there."""
        looks = 0
        while attempt.process.poll() is None and not there():
            self._look()
            if looks % 10 == 0 and not self.piece.on_cpu:
                phase = next((name for name in PHASES if name not in self.seen), "later steps")
                self.used.setdefault(phase, []).append(in_use())
            looks += 1
            time.sleep(0.2)
        self._look()

    def _look(self) -> None:
        """Notes the phases that have ended."""
        said = self._said()
        for name, words in PHASES.items():
            if name not in self.seen and words in said:
                self.seen[name] = time.monotonic() - self._begin

    def _said(self) -> str:
        """Of this attempt."""
        return self.log.read_bytes()[self._read :].decode(errors="replace")

    def _variables(self) -> dict[str, str]:
        if not (nemo_rl := os.environ.get("NEMO_RL_HOME")):
            raise ValueError("NEMO_RL_HOME must name a checkout of NeMo-RL")
        env = {**os.environ, **machine.variables(Path(nemo_rl), self.folder)}
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if self.piece.on_cpu:
            return env
        kept = {name: value for name, value in env.items() if name not in NOT_ON_A_GPU}
        return kept | ON_A_GPU | {"VLLM_CACHE_ROOT": str(self.piece.out / "vllm")}


def started(piece: Piece) -> Path:
    """OUT/start: the countdown model and its rows; made where it is not (half a minute)."""
    folder = piece.out / "start"
    if not folder.exists():
        words = ["-m", "nemo_algos", "export", START, "made", *(() if piece.on_cpu else WIDE)]
        shutil.rmtree(piece.out / "made", ignore_errors=True)
        piece.python("start", *words, cwd=piece.out)
        (piece.out / "made").rename(folder)
    return folder


def in_use() -> float:
    """MiB of the card, by all processes."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(asked, capture_output=True, text=True).stdout.split()[0])

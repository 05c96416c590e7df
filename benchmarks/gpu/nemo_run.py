"""A run of NeMo-RL as a user starts it, in a folder of its own, watched from its first second.

Its figures are curves of TensorBoard, seconds to the places in its log where a phase ends, and
memory. On a machine without nvidia-smi tests/real/stack/rehearsal/cpu takes the GPU's place.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from piece import ROOT, Piece
from rehearsal import machine
from rehearsal.reaper import reap
from rehearsal.training import Attempt, curves

from nemo_algos.preflight.check.data import ray_head

HERE = Path(__file__).parent
START = "recipes/cpu/countdown.yaml"
WIDE = ("policy.shape={width: 256, layers: 4, heads: 4, hidden: 768}",)
WIDE += ("policy.taught={steps: 400, device: cuda}",)
LONGEST = 40  # characters of a folder below which Ray's sockets have names that fit
PHASES = {  # what ends, and the words of NeMo-RL's log that follow it
    "config, Ray, data": "Setting up compute cluster",
    "cluster": "Setting up model and training",
    "vLLM and Megatron": "SETUP COMPLETE",
    "first batch": "Computing logprobs",
    "first step": "Total step time",
}
ALLOCATED = re.compile(r"GPU Memory [\w ]+: ([\d.]+)GB allocated, ([\d.]+)GB reserved")
CURVES = ("train/loss", "train/grad_norm", "train/reward", "train/lr", "train/mismatch/")
CURVES += ("train/token_mult_prob_error", "train/gen_kl_error", "timing/train/", "timing/setup/")
NOT_ON_A_GPU = ("TORCHDYNAMO_DISABLE", "NEMO_CPU_SOCKET", "VLLM_CPU_KVCACHE_SPACE")
NOT_ON_A_GPU += ("VLLM_CPU_OMP_THREADS_BIND",)
ON_A_GPU = {
    "OMP_NUM_THREADS": "2",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "PYTHONUNBUFFERED": "1",
}


class Run:
    """A run in OUT/NAME; its config is one of ./configs, or `cpu` in miniature."""

    def __init__(self, piece: Piece, name: str, config: str, *overrides: str) -> None:
        self.piece = piece
        self.name = name
        self.folder = piece.out / name
        if len(str(self.folder)) > LONGEST:
            raise ValueError(
                f"{self.folder} is too long a name for Ray's sockets: give --out of at most "
                f"{LONGEST - len(name) - 1} characters"
            )
        config = "cpu" if piece.on_cpu else config
        self.words = ["train", "--config", str(HERE / "configs" / f"{config}.yaml")]
        self.words += ["logger.log_dir=logs", "logger.tensorboard_enabled=true", *overrides]
        self.seen: dict[str, float] = {}
        self.used: list[float] = []
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

    def run(self, program: str = "keeping", kill_at: str = "", **more: str) -> None:
        """The run to its end; with `kill_at`, ended by SIGKILL when that path is there, and resumed.

        Raises ValueError where it fails. What it left of figures is the piece's in any case.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        start = self.folder / "start"
        if not start.exists():
            start.symlink_to(started(self.piece))
        env = self._variables() | more
        try:
            # imports of the driver, and Ray's start, side by side
            attempt = self._attempt(env, program)
            with ray_head.head(self.folder, env, 1) as address:
                attempt.tell(self.words, address)
                if kill_at:
                    self._watch(attempt, (self.folder / kill_at).exists)
                    attempt.process.kill()
                    self.keep("first attempt: ")
                    attempt = self._attempt(env, program)
                    attempt.tell(self.words, address)
                self._watch(attempt)
                status = attempt.process.wait()
        finally:
            self.keep("resumed: " if kill_at else "")
            reap(self.folder)
        if status:
            raise ValueError(f"{self.name} ended with status {status}: {attempt.last_lines()[-1500:]}")
        self.done.touch()

    def keep(self, prefix: str) -> None:
        """Its figures as they are now."""
        found = curves(self.folder)
        for name, curve in sorted(found.items()):
            if name.startswith(CURVES):
                self.figure(prefix + name, [curve[step] for step in sorted(curve)])
        before = 0.0
        for name, at in self.seen.items():
            self.figure(f"{prefix}seconds of {name}", round(at - before, 1))
            before = at
        if self.used:
            self.figure(f"{prefix}memory in use, MiB, every 2 s", self.used)
        if found := ALLOCATED.findall(self.log.read_text(errors="replace")):
            peaks = [max(map(float, column)) for column in zip(*found, strict=True)]
            self.figure(f"{prefix}torch's memory, GB allocated and reserved", peaks)

    def figure(self, name: str, value: object) -> None:
        """One of the piece's."""
        self.piece.figures[f"{self.name}: {name}"] = value

    def _attempt(self, env: Mapping[str, str], program: str) -> Attempt:
        self.seen.clear()
        self._begin = time.monotonic()
        self._read = self.log.stat().st_size if self.log.exists() else 0
        return Attempt(self.log, env, [str(HERE / f"{program}.py")], self.folder)

    def _watch(self, attempt: Attempt, there: Callable[[], bool] = lambda: False) -> None:
        """Waits for its end, or for what is to be there."""
        looks = 0
        while attempt.process.poll() is None and not there():
            said = self.log.read_bytes()[self._read :].decode(errors="replace")
            for name, words in PHASES.items():
                if name not in self.seen and words in said:
                    self.seen[name] = time.monotonic() - self._begin
            if looks % 10 == 0 and not self.piece.on_cpu:
                self.used.append(in_use())
            looks += 1
            time.sleep(0.2)

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


__all__ = ["ROOT", "Run", "in_use", "started"]

"""A NeMo-RL run as its rules see it."""

from dataclasses import dataclass
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.preflight.check.layout import Run
from nemo_algos.preflight.check.release import Release

CORRECTION = "loss_fn.use_importance_sampling_correction"


@dataclass(frozen=True)
class Preflight(Run):
    """A NeMo-RL run before it starts.

    plain: the config as it would train; written: the user's own keys; algorithm: None where
    unknown; nemo_rl: the one that trains it; seconds: the job's limit.
    """

    written: dict[str, Any]
    algorithm: Algorithm | None
    nemo_rl: Release
    seconds: int | None = None

    def or_default(self, path: str) -> Any:
        """A key's value, or where it is absent or null the default of NeMo-RL's type."""
        value = self[path]
        return self.nemo_rl.schema.get(path, {}).get("default") if value is None else value

    @property
    def megatron(self) -> bool:
        """Else DTensor trains."""
        return self.layout.backend == "megatron"

    def size_key(self, group: str) -> str:
        """The path of a parallel group's size."""
        infix = "_model" if self.megatron and group != "context" else ""
        return f"{self.section}.{group}{infix}_parallel_size"

    @property
    def vllm(self) -> bool:
        """Whether vLLM generates."""
        return self["policy.generation.backend"] == "vllm"

    @property
    def known(self) -> Algorithm:
        """The method's algorithm, in rules that are asked only where it could be built."""
        assert self.algorithm
        return self.algorithm

    @property
    def corrected(self) -> bool:
        """Whether rollouts of another policy than the trained one are corrected for."""
        return bool(self[CORRECTION] or self.known.correction.active)

"""What a rule sees of a run, and what it says; docs/check.md names each rule's source."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from nemo_algos.config import Finding, at
from nemo_algos.methods.algorithm import Algorithm
from nemo_algos.preflight.layout import Layout
from nemo_algos.preflight.models import Model

error = Finding
warning = partial(Finding, severity="warning")
note = partial(Finding, severity="note")


@dataclass(frozen=True)
class Preflight:
    """A NeMo-RL run before it starts: `run["cluster.num_nodes"]`, and what follows from its config.

    plain: the config as it would train; written: the user's own keys; algorithm, model: None where
    unknown; seconds: the job's limit.
    """

    plain: dict[str, Any]
    written: dict[str, Any]
    algorithm: Algorithm | None
    layout: Layout
    model: Model | None
    version: str
    seconds: int | None = None

    def __getitem__(self, path: str) -> Any:
        return at(self.plain, path)

    @property
    def megatron(self) -> bool:
        """Else DTensor trains."""
        return self.layout.backend == "megatron"

    @property
    def section(self) -> str:
        """The path of the backend that trains."""
        return "policy.megatron_cfg" if self.megatron else "policy.dtensor_cfg"

    def size_key(self, group: str) -> str:
        """The path of a parallel group's size."""
        infix = "_model" if self.megatron and group != "context" else ""
        return f"{self.section}.{group}{infix}_parallel_size"

    @property
    def rollouts(self) -> int:
        """Sequences per step."""
        return self["grpo.num_prompts_per_step"] * self["grpo.num_generations_per_prompt"]

    @property
    def packing(self) -> str | None:
        """What fills micro batches by tokens: sequence_packing, dynamic_batching, or nothing."""
        names = ("sequence_packing", "dynamic_batching")
        return next((n for n in names if self[f"policy.{n}.enabled"]), None)

    @property
    def vllm(self) -> bool:
        """Whether vLLM generates."""
        return self["policy.generation.backend"] == "vllm"


Rule = Callable[[Preflight], Iterator[Finding]]

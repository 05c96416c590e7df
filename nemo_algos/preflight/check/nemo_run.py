"""A NeMo-RL run as its rules see it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.preflight.check.layout import Run, layout
from nemo_algos.preflight.check.rule import Rule, ask


@dataclass(frozen=True)
class Preflight(Run):
    """A NeMo-RL run before it starts.

    plain: the config as it would train; written: the user's own keys; algorithm: None where
    unknown; seconds: the job's limit; sizes: rules that a number proposed by one must satisfy.
    """

    written: dict[str, Any]
    algorithm: Algorithm | None
    version: str
    seconds: int | None = None
    sizes: tuple[Rule, ...] = ()

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

    def cure(self, path: str, choices: Iterable[Mapping[str, Any]], otherwise: str = "") -> str:
        """`Set it to 4.`: the first choice of values with which no rule of sizes finds more.

        A rule that is asked on trial proposes nothing.
        """
        known = self._wrong({}) - {path}
        for choice in choices if self.sizes else ():
            if self._wrong(choice) <= known:
                others = {k: json.dumps(v) for k, v in choice.items() if k != path}
                also = "".join(f", and `{k}: {v}`" for k, v in others.items())
                return f"Set it to {choice[path]}{also}."
        return otherwise

    def _wrong(self, values: Mapping[str, Any]) -> set[str]:
        """Keys that the rules of sizes find something at, with these values."""
        plain = dict(self.plain)
        for path, value in values.items():
            plain = _with(plain, path, value)
        trial = replace(self, plain=plain, layout=layout(plain), sizes=())
        return {finding.path for finding in ask(self.sizes, trial)}


def _with(section: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    key, _, below = path.partition(".")
    return {**section, key: _with(section.get(key) or {}, below, value) if below else value}

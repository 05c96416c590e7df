"""What a user has written and the run does not read, because a switch is off."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_algos.findings import Finding, at
from nemo_algos.preflight.forecast.planned import Planned, warning

# sections that are read also when they are off
MATTER_WHEN_OFF = (
    "policy.generation.colocated",
    "policy.dtensor_cfg",
    "policy.megatron_cfg",
)
CORE = "policy.megatron_cfg"
GENERATION = "policy.generation"
# keys, or sections, that are read where another key has this value
SWITCHED: dict[str, tuple[str, Any]] = {
    f"{CORE}.recompute_granularity": (f"{CORE}.activation_checkpointing", True),
    f"{CORE}.recompute_modules": (f"{CORE}.activation_checkpointing", True),
    f"{CORE}.optimizer.optimizer_offload_fraction": (
        f"{CORE}.optimizer.optimizer_cpu_offload",
        True,
    ),
    "grpo.dynamic_sampling_max_gen_batches": ("grpo.use_dynamic_sampling", True),
    f"{GENERATION}.colocated.resources": (f"{GENERATION}.colocated.enabled", False),
    f"{GENERATION}.vllm_cfg": (f"{GENERATION}.backend", "vllm"),
    f"{GENERATION}.vllm_kwargs": (f"{GENERATION}.backend", "vllm"),
    f"{GENERATION}.sglang_cfg": (f"{GENERATION}.backend", "sglang"),
    f"{GENERATION}.mcore_generation_config": (f"{GENERATION}.backend", "megatron"),
}


def inert(run: Planned) -> Iterator[Finding]:
    """What is written below a section that is off has no effect."""
    for path, keys in _sections(run.written, ""):
        if path in MATTER_WHEN_OFF or run[f"{path}.enabled"] is not False:
            continue
        own = [key for key in keys if key != "enabled" and keys[key] is not None]
        if own and not path.startswith("checkpointing"):
            yield warning(
                f"{path}.{own[0]}",
                f"no effect while `{path}.enabled` is false. Set that to true, or remove this.",
            )


def switched_off(run: Planned) -> Iterator[Finding]:
    """A key whose switch is elsewhere has no effect while that is off."""
    for path, (switch, on) in SWITCHED.items():
        found = run[switch]
        if at(run.written, path) is None or (found or False) == on:
            continue
        if path.startswith(CORE) and not run.megatron:
            continue  # the whole section is not read
        yield warning(
            path,
            f"no effect while `{switch}` is {_written(found)}. Set that to {_written(on)}, "
            "or remove this.",
        )


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(bool(value)).lower()
    return str(value)


def _sections(keys: Mapping[str, Any], above: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield f"{above}{key}", value
            yield from _sections(value, f"{above}{key}.")

"""Generation: its layout, its samples, its distance from training."""

from collections.abc import Iterator
from math import gcd

from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.check.decoder import Model
from nemo_algos.preflight.check.layout import VLLM
from nemo_algos.preflight.check.rule import (
    CORRECTION,
    Preflight,
    divisors,
    error,
    errors,
    near,
    warning,
)

GENERATION = "policy.generation"
TENSOR = f"{VLLM}.tensor_parallel_size"
KWARGS = f"{GENERATION}.vllm_kwargs"
# arguments of vLLM's engine that NeMo-RL's worker sets beside vllm_kwargs; tests/real/nemo compares
GIVEN = (
    "disable_log_stats", "dtype", "enable_expert_parallel", "enable_prefix_caching",
    "enable_sleep_mode", "enforce_eager", "gpu_memory_utilization", "load_format", "max_model_len",
    "model", "pipeline_parallel_size", "seed", "served_model_name", "skip_tokenizer_init",
    "tensor_parallel_size", "trust_remote_code", "worker_extension_cls",
)  # fmt: skip


def engines(run: Preflight) -> Iterator[Finding]:
    """An engine's GPUs divide those that generate, the model's heads and its experts."""
    if not run.vllm:
        return
    a = run.layout
    m = run.model
    tensor = a.generation_tensor
    yield from errors(
        (
            a.generation_gpus % (tensor * a.generation_pipeline),
            TENSOR,
            f"TP {tensor} x PP {a.generation_pipeline} does not divide the number of "
            f"generation GPUs ({a.generation_gpus}). {_tensors(run)}",
        ),
        (
            a.generation_pipeline > 1 and not run[f"{VLLM}.async_engine"],
            f"{VLLM}.async_engine",
            "pipeline parallelism needs it. Set it to true.",
        ),
    )
    if m and not splits_heads(m, tensor):
        yield error(
            TENSOR,
            f"the model's {m.attention.heads} attention heads and {m.attention.groups} key-value "
            f"heads do not divide over {tensor} ranks. {_tensors(run)}",
        )
    path = f"{VLLM}.expert_parallel_size"
    parts = run[path] or 1
    if parts > 1 and parts % tensor:
        yield error(
            path,
            f"{parts} is not a multiple of vLLM's tensor_parallel_size: {tensor}. Set it to "
            f"{tensor}, or to 1.",
        )
    elif 1 < parts != tensor and run[f"{VLLM}.async_engine"]:
        yield error(
            path,
            "the asynchronous engine only supports its tensor_parallel_size here. Set it to "
            f"{tensor}.",
        )


def _tensors(run: Preflight) -> str:
    """The tensor-parallel sizes that divide an engine's GPUs and the model's heads."""
    a = run.layout
    gpus = a.generation_gpus // a.generation_pipeline
    if a.generation_gpus % a.generation_pipeline:
        return f"Set `{VLLM}.pipeline_parallel_size` to a divisor of {a.generation_gpus} first."
    heads = run.model.attention.heads if run.model else gpus
    sizes = []
    for t in divisors(gcd(gpus, heads)):
        if not run.model or splits_heads(run.model, t):
            sizes.append(t)
    return f"Set it to {near(a.generation_tensor, sizes)}."


def splits_heads(model: Model, tensor: int) -> bool:
    """Whether vLLM can split a model's heads so: it splits or copies key-value heads."""
    heads = model.attention.heads % tensor == 0
    return heads and (model.attention.groups % tensor == 0 or tensor % model.attention.groups == 0)


def engine_arguments(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL gives vLLM some arguments itself, and Python takes none twice."""
    for key in run[KWARGS] or {} if run.vllm else ():
        if key in GIVEN:
            own = f" Set `{VLLM}.{key}` instead." if key in (run[VLLM] or {}) else " Remove it."
            yield error(
                f"{KWARGS}.{key}",
                f"NeMo-RL gives vLLM this argument itself, and vLLM would be given it twice.{own}",
            )
        elif key not in run.nemo_rl.engine.arguments:
            engine = run.nemo_rl.engine
            told = error if engine.installed else warning
            hint = did_you_mean(key, sorted(engine.arguments))
            yield told(f"{KWARGS}.{key}", f"{engine.name} does not have this argument{hint}")


def asynchronous(run: Preflight) -> Iterator[Finding]:
    """What asynchronous GRPO asserts."""
    if not run["grpo.async_grpo.enabled"]:
        return
    never = run.nemo_rl.facts["asynchronous GRPO needs GPUs of its own"]
    apart = never or run[f"{GENERATION}.backend"] != "megatron"
    yield from errors(
        (
            run.vllm and not run[f"{VLLM}.async_engine"],
            f"{VLLM}.async_engine",
            "asynchronous GRPO needs it. Set it to true.",
        ),
        (
            run.layout.colocated and apart,
            f"{GENERATION}.colocated.enabled",
            "asynchronous GRPO generates on separate GPUs. Set it to false, and set "
            "`colocated.resources`.",
        ),
    )


def precision(run: Preflight) -> Iterator[Finding]:
    """Training and generation compute alike, or the difference is corrected."""
    path = f"{VLLM}.precision"
    if run.vllm and run[path] not in (None, run["policy.precision"]) and not run[CORRECTION]:
        yield warning(
            path,
            f"rollouts in {run[path]} are not sampled from the policy trained in "
            f"{run['policy.precision']}. Use one precision, or set `{CORRECTION}: true`.",
        )

"""Megatron-LM's command line as a `Training`: `{"num-layers": 32, ...}` as a test's config has it.

Defaults are those of megatron/training/arguments.py at d98e8a64dd.
"""

import re
from collections.abc import Mapping
from typing import Any

from megatron_lm.known import NOT_MODELLED, Arguments, Refused, unknown
from megatron_lm.network import network

from nemo_algos.preflight.plan.workload import (
    Kernels,
    Network,
    Parallel,
    Recompute,
    States,
    Training,
)

MIB = 2**20


def training(
    args: Mapping[str, Any], gpus: int, capability: int, env: Mapping[str, Any]
) -> Training:
    """Of these arguments on so many GPUs. Raises Refused with the reason."""
    for name, reason in NOT_MODELLED.items():
        if args.get(name):
            raise Refused(f"{name}: {reason}")
    if env.get("NVTE_CPU_OFFLOAD_V1"):
        raise Refused("NVTE_CPU_OFFLOAD_V1: activations on the host")
    a = Arguments(args)
    p = _parallel(a, gpus)
    net = network(a, p)
    sequences = a.number("global-batch-size") or 384  # of a batch-size schedule: its first
    micro = a.number("micro-batch-size", 1)
    replicas = max(1, p.gpus // (p.tensor * p.pipeline * p.context))
    made = Training(
        network=net,
        parallel=p,
        sequence=a.number("seq-length"),
        micro_batch=micro,
        micro_batches=max(1, sequences // (micro * replicas)),
        states=_states(a, capability),
        kernels=_kernels(a, capability, env),
        recompute=_recompute(a, net),
    )
    if names := unknown(a.unread):
        raise Refused(f"not known here: {', '.join(names)}")
    return made


def _parallel(a: Arguments, gpus: int) -> Parallel:
    tensor = a.number("tensor-model-parallel-size", 1)
    p = Parallel(
        gpus=gpus,
        tensor=tensor,
        pipeline=a.number("pipeline-model-parallel-size", 1),
        context=a.number("context-parallel-size", 1),
        expert=a.number("expert-model-parallel-size", 1),
        expert_tensor=a.number("expert-tensor-parallel-size", tensor),
        sequence=bool(a["sequence-parallel"]) and tensor > 1,
        warmup_group=a.number("microbatch-group-size-per-virtual-pipeline-stage"),
        extra_forward=bool(a["overlap-moe-expert-parallel-comm"]),
    )
    experts = p.expert * p.expert_tensor if a["num-experts"] else 1
    for ranks in (p.tensor * p.context * p.pipeline, experts * p.pipeline):
        if gpus % ranks:
            raise Refused(f"{gpus} GPUs do not divide by {ranks} of a replica")
    return p


def _states(a: Arguments, capability: int) -> States:
    half, copies = bool(a["fp16"]), 0.0
    weight = 2.0 if a["bf16"] or half else 4.0
    columns = 1 if capability == 9 or a["fp8-recipe"] == "mxfp8" else 0  # FP8 kept transposed too
    if _fp8(a):
        copies = 1 + columns
        if a["fp8-param-gather"]:
            copies -= weight  # in their place
    fully = bool(a["use-megatron-fsdp"]) and "params" in str(a["data-parallel-sharding-strategy"])
    optimizer = str(a["optimizer"])
    moments = a.size("exp-avg-dtype", 4)
    moments += 0 if optimizer in ("sgd", "lion") else a.size("exp-avg-sq-dtype", 4)
    aware = bool(a["use-precision-aware-optimizer"])
    low = half or bool(a["grad-reduce-in-bf16"]) or (aware and a.size("main-grads-dtype", 4) == 2)
    main = 0 if weight == 4 else a.size("main-params-dtype", 4)
    offloaded = float(a["optimizer-offload-fraction"] or 1) if a["optimizer-cpu-offload"] else 0.0
    return States(
        weight=weight,
        linear_copies=copies,
        gradient=2 if low else 4,
        main=2 if aware and main == 4 and a["bf16"] else main,  # the half that BF16 weights lack
        moments=moments,
        main_gradient=4 if low and not aware else 0,
        on_host=offloaded,
        sharded=bool(a["use-distributed-optimizer"]) or optimizer.startswith("dist_"),
        fully=fully,
        instances=a.number("num-distributed-optimizer-instances", 1),
        muon="muon" in optimizer,
        muon_whole=bool(a["no-use-layer-wise-param-layout"]),
    )


def _fp8(a: Arguments) -> bool:
    return bool(a["fp8-format"] or a["fp8"])


def _kernels(a: Arguments, capability: int, env: Mapping[str, Any]) -> Kernels:
    backend = a["attention-backend"] or "auto"
    if a["transformer-impl"] == "local":
        backend = "unfused"
    elif a["use-flash-attn"] or backend == "auto":
        older = capability == 8 or (capability == 10 and a["deterministic-mode"])
        backend = "flash" if older else "fused"
    number = 2 if a["bf16"] or a["fp16"] else 4
    dropout = a.probability("attention-dropout") > 0
    softmax = 4 if a["no-masked-softmax-fusion"] and a["transformer-impl"] == "local" else number
    return Kernels(
        attention=backend,
        number=number,
        linear_input=1 if _fp8(a) else number,
        score=softmax + dropout * (1 + number),
        hidden_dropout=a.probability("hidden-dropout") > 0,
        logits=_logits(a, number),
        workspace=_workspace(a, capability, env),
    )


def _logits(a: Arguments, number: int) -> tuple[float, float]:
    """BF16 logits and a float32 copy that becomes the softmax; fused: another. Float32: itself."""
    most = (4 if a["cross-entropy-loss-fusion"] else 0) + (4 if number == 4 else 6)
    waiting = a.number("wgrad-deferral-limit") if a["defer-embedding-wgrad-compute"] else 0
    return most + 2 * waiting, 4


def _workspace(a: Arguments, capability: int, env: Mapping[str, Any]) -> float:
    """cuBLAS: of torch's forward and backward thread, of TE's GEMM and its four grouped ones."""
    configured = re.findall(r":(\d+):(\d+)", str(env.get("CUBLAS_WORKSPACE_CONFIG", "")))
    default = 32 * MIB if capability == 9 else 8320 * 1024
    torch = sum(int(kib) * 1024 * int(n) for kib, n in configured) or default
    each = 4 * MIB if capability < 9 else 32 * MIB
    own = 0 if a["transformer-impl"] == "local" else 1
    return 2 * torch + each * (own + 4 * bool(a["moe-grouped-gemm"]) * own)


def _recompute(a: Arguments, net: Network) -> Recompute:
    if a["recompute-granularity"] == "selective" or a["recompute-activations"]:
        modules = re.findall(r"\w+", str(a["recompute-modules"] or "core_attn"))
        return Recompute(modules=frozenset(modules))
    if a["recompute-granularity"] != "full":
        return Recompute()
    count = a.number("recompute-num-layers", 1)
    if a["recompute-method"] == "block":
        return Recompute(layers=count)
    return Recompute(layers=sum(map(len, net.stages)), group=count)

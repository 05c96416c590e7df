"""Megatron-LM's command line as a `Training`: `{"num-layers": 32, ...}` as a test's config has it.

Defaults are those of megatron/training/arguments.py at d98e8a64dd.
"""

import re
from collections.abc import Mapping
from typing import Any

from nemo_algos.plan.megatron_known import NOT_MODELLED, unknown
from nemo_algos.plan.shapes import (
    Attention,
    Experts,
    Kernels,
    Mamba,
    Network,
    Parallel,
    Recompute,
    States,
    Training,
)

GPT2 = 50257  # the vocabulary of Megatron's tests, where the arguments name none
VOCABULARIES = {"GPTSentencePieceTokenizer": 256000, "TikTokenizer": 131072}  # of their files
MIB = 2**20
BYTES = {"32": 4, "16": 2, "8": 1}


class Refused(ValueError):
    """A configuration that this model does not cover; the message is the reason."""


class Arguments:
    """Access by name; `unread` are those that nobody has asked for."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._args = args
        self.unread = set(args)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return self._args.get(name)

    def number(self, name: str, default: float = 0) -> int:
        """An integer argument."""
        value = self[name]
        return int(default if value is None else value)

    def probability(self, name: str) -> float:
        """Of a dropout, .1 by default."""
        value = self[name]
        return 0.1 if value is None else float(value)

    def size(self, name: str, default: int) -> int:
        """Bytes of a number of this type."""
        return next((n for t, n in BYTES.items() if t in str(self[name])), default)


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
    net = _network(a, p)
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


def _network(a: Arguments, p: Parallel) -> Network:
    heads, hidden = a.number("num-attention-heads"), a.number("hidden-size")
    gated, size = bool(a["swiglu"] or a["quick-geglu"]), a.number("kv-channels", hidden // heads)
    features = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    features = a.number("ffn-hidden-size", features)
    stages, mtp = _stages(a, p)
    group = a.number("make-vocab-size-divisible-by", 128) * p.tensor
    tokenizer = "TikTokenizer" if a["tiktoken-pattern"] else a["tokenizer-type"]
    known = a["vocab-size"] or VOCABULARIES.get(tokenizer or "", GPT2)
    learned = (a["position-embedding-type"] or "learned_absolute") == "learned_absolute"
    rotary = a["use-rotary-position-embeddings"] or a["multi-latent-attention"]
    return Network(
        stages=stages,
        hidden=hidden,
        features=features,
        vocabulary=-(-int(known) // group) * group,
        attention=_attention(a, heads, size),
        experts=_experts(a, features),
        mamba=_mamba(a, hidden),
        mtp=mtp,
        gated=gated,
        tied=not a["untie-embeddings-and-output-weights"],
        bias=not a["disable-bias-linear"],
        query_bias=bool(a["add-qkv-bias"]),
        norm_vectors=1 if a["normalization"] == "RMSNorm" else 2,
        positions=a.number("max-position-embeddings") if learned and not rotary else 0,
    )


def _attention(a: Arguments, heads: int, size: int) -> Attention:
    if a["multi-latent-attention"]:
        return Attention(
            heads=heads,
            groups=heads,
            size=a.number("qk-head-dim", 128),
            value_size=a.number("v-head-dim", 128),
            latent_query=a.number("q-lora-rank"),
            latent_kv=a.number("kv-lora-rank", 32),
            rotary=a.number("qk-pos-emb-head-dim", 64),
        )
    groups = a.number("num-query-groups", 1) if a["group-query-attention"] else heads
    return Attention(heads, groups, size, size, bool(a["qk-layernorm"]))


def _experts(a: Arguments, features: int) -> Experts | None:
    if not a["num-experts"]:
        return None
    gated, plain = bool(a["swiglu"]), bool(a["squared-relu"])
    fused = not a["no-bias-swiglu-fusion"] if gated else a["use-fused-weighted-squared-relu"]
    return Experts(
        number=a.number("num-experts"),
        chosen=a.number("moe-router-topk", 2),
        features=a.number("moe-ffn-hidden-size", features),
        shared=a.number("moe-shared-expert-intermediate-size"),
        latent=a.number("moe-latent-size"),
        grouped=bool(a["moe-grouped-gemm"]),
        fused_weighting=bool(fused) and (gated or plain),
    )


def _mamba(a: Arguments, hidden: int) -> Mamba | None:
    size = a.number("mamba-head-dim", 64)
    heads = a.number("mamba-num-heads", 2 * hidden // size)
    state, groups = a.number("mamba-state-dim", 128), a.number("mamba-num-groups", 8)
    return Mamba(heads * size, heads, state, groups) if _pattern(a) else None


def _pattern(a: Arguments) -> str:
    return a["hybrid-layer-pattern"] or a["hybrid-override-pattern"] or ""


def _stages(a: Arguments, p: Parallel) -> tuple[tuple[tuple[str, ...], ...], tuple[Any, ...]]:
    """Layers by (virtual) stage, and those of each multi-token prediction depth."""
    if pattern := _pattern(a):
        main, *mtp = pattern.split("/")
        stages = tuple(tuple(part) for part in main.split("|"))
        if len(stages) == 1:
            stages = _even(stages[0], p.pipeline)
        return stages, tuple(tuple(depth) for depth in mtp if depth)
    layers = _layers(a)
    mtp = (layers[-1:],) * a.number("mtp-num-layers")
    if layout := a["pipeline-model-parallel-layout"]:
        return _laid_out(layout, layers), mtp
    first, last = (a.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    if first or last:
        middle = layers[first : len(layers) - last]
        inner = _even(middle, p.pipeline - bool(first) - bool(last))
        ends = ((layers[:first],) if first else (), (layers[len(layers) - last :],) if last else ())
        return ends[0] + inner + ends[1], mtp
    chunks = _chunks(a, p, len(layers))
    blank = bool(a["account-for-embedding-in-pipeline-split"])
    end = bool(a["account-for-loss-in-pipeline-split"])
    padded = ("",) * blank + layers + ("",) * end
    return tuple(tuple(filter(None, s)) for s in _even(padded, p.pipeline * chunks)), mtp


def _layers(a: Arguments) -> tuple[str, ...]:
    count, every = a.number("num-layers"), str(a["moe-layer-freq"] or 1)
    if not a["num-experts"]:
        return ("*-",) * count
    if re.fullmatch(r"\d+", every):
        mixed = [i % int(every) == 0 for i in range(count)]
    else:
        runs = re.findall(r"\[([01, ]+)\](?:\*(\d+))?", every)
        mixed = [x == "1" for r, n in runs for x in re.findall("[01]", r) * int(n or 1)]
    if len(mixed) != count:
        raise Refused(f"moe-layer-freq {every} is not of {count} layers")
    return tuple("*E" if experts else "*-" for experts in mixed)


def _chunks(a: Arguments, p: Parallel, layers: int) -> int:
    if each := a.number("num-layers-per-virtual-pipeline-stage"):
        return layers // p.pipeline // each if p.pipeline > 1 else 1
    given = ("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size")
    return max(a.number(name, 1) for name in given)


def _even(layers: tuple[str, ...], parts: int) -> tuple[tuple[str, ...], ...]:
    if len(layers) % parts:
        raise Refused(f"{len(layers)} layers do not divide into {parts} stages")
    each = len(layers) // parts
    return tuple(layers[i * each : (i + 1) * each] for i in range(parts))


def _laid_out(layout: str, layers: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Of `Et*2|(tt|)*5t|tmL`: E embedding, t layer, m MTP, L loss, | between stages."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout.replace(",", ""))
    text = re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    counts = [stage.count("t") for stage in text.split("|")]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return tuple(layers[s : s + n] for s, n in zip(starts, counts, strict=True))


def _states(a: Arguments, capability: int) -> States:
    half, copies = bool(a["fp16"]), 0.0
    weight = 2.0 if a["bf16"] or half else 4.0
    columns = 1 if capability == 9 or a["fp8-recipe"] == "mxfp8" else 0  # FP8 kept transposed too
    if a["fp8-format"]:
        copies = 1 + columns
        if a["fp8-param-gather"]:
            copies -= weight  # in their place
    fully = bool(a["use-megatron-fsdp"]) and "params" in str(a["data-parallel-sharding-strategy"])
    low = half or bool(a["grad-reduce-in-bf16"])
    aware = bool(a["use-precision-aware-optimizer"])
    main = 0 if weight == 4 else a.size("main-params-dtype", 4)
    offloaded = float(a["optimizer-offload-fraction"] or 1) if a["optimizer-cpu-offload"] else 0.0
    return States(
        weight=weight,
        linear_copies=copies,
        gradient=2 if low else 4,
        main=2 if aware and main == 4 and a["bf16"] else main,  # the half that BF16 weights lack
        moments=a.size("exp-avg-dtype", 4) + a.size("exp-avg-sq-dtype", 4),
        main_gradient=4 if low and not aware else 0,
        on_host=offloaded,
        sharded=bool(a["use-distributed-optimizer"]),
        fully=fully,
        instances=a.number("num-distributed-optimizer-instances", 1),
        muon="muon" in str(a["optimizer"]),
        muon_whole=bool(a["no-use-layer-wise-param-layout"]),
    )


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
        linear_input=1 if a["fp8-format"] else number,
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

"""The most bytes allocated on a GPU that trains or generates, by component, and on a host.

What the forward of a micro-batch leaves for the backward is counted from the autograd functions of
Megatron-Core and Transformer Engine; Korthikanti et al. 2022, "Reducing Activation Recomputation in
Large Transformer Models", is the case of one kind of layer. Numbers are of 2 bytes but where said;
the input of a linear layer is kept in FP8 with FP8.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from nemo_algos.preflight.check.layout import VLLM
from nemo_algos.preflight.plan import workload
from nemo_algos.preflight.plan.nemo_rl_arguments import Setup, training
from nemo_algos.preflight.plan.workload import Held, Training, of_layers

ENGINE_WORKSPACE = 4e9  # vLLM's activations and CUDA graphs; an assumption
GIB = 2**30
# GiB of each GPU's weights, and of each engine's cache, that vLLM keeps on the host
ENGINE_OFFLOADS = "policy.generation.vllm_kwargs.cpu_offload_gb"
CACHE_OFFLOADS = "policy.generation.vllm_kwargs.kv_offloading_size"
LOGPROB_OFFLOADS = "policy.offload_optimizer_for_logprob"
SLEEPING = 2e9  # what a sleeping vLLM keeps of a GPU that trains; an assumption


def _norm(run: Training) -> float:
    """Its input, and its output that the next linear layer takes."""
    k = run.kernels
    kept = 0 if "layernorm" in run.recompute.modules else k.linear_input
    return run.own_tokens * run.network.hidden * (k.number + kept)


def _stays(run: Training, module: str) -> bool:
    """Whether the inputs of a module stay on the GPU."""
    return module not in run.recompute.offloaded


def _residual(run: Training) -> float:
    return run.own_tokens * run.network.hidden * run.kernels.hidden_dropout


def _scores(run: Training) -> float:
    """Probabilities, with dropout also its mask and result; or the logarithms of their sums."""
    a = run.network.attention
    p = run.parallel
    k = run.kernels
    if "core_attn" in run.recompute.modules:
        return 0.0
    heads = a.heads / p.tensor
    if k.attention == "unfused":
        return k.score * heads * run.tokens * run.sequence
    copied = k.number * a.value_size if k.attention == "flash" else 0  # its output, transposed
    return run.tokens * heads * (4 + copied)


def attention(run: Training) -> float:
    """Queries, keys and values as the scores need them, and the input of the projection."""
    a = run.network.attention
    p = run.parallel
    k = run.kernels
    heads = a.heads / p.tensor
    groups = max(a.groups, p.tensor) / p.tensor
    if k.attention == "unfused" or a.latent_kv:
        groups = heads  # keys and values are repeated
    ranks = 2 * (a.latent_query + a.latent_kv) + a.rotary  # before and after their norms
    compressed = k.number * run.own_tokens * ranks
    size = a.size + a.rotary
    mixed = k.number * (heads * size * (1 + a.gated) + groups * (size + a.value_size))
    if a.query_key_norm and not a.latent_kv:
        mixed += k.number * (heads + groups) * size
    if "mla_up_proj" in run.recompute.modules or not _stays(run, "core_attn"):
        mixed = 0
    projected = k.linear_input * heads * a.value_size * _stays(run, "attn_proj")
    inside = run.tokens * (mixed + projected)
    return _norm(run) + compressed + inside + _scores(run) + _residual(run)


def _activated(run: Training, rows: float, features: float) -> float:
    """Before and after an MLP's activation."""
    first = run.kernels.number * (1 + run.network.gated)
    return rows * features * (first + run.kernels.linear_input)


def mlp(run: Training) -> float:
    """A dense layer's."""
    inside = _activated(run, run.tokens, run.network.features / run.parallel.tensor)
    return _norm(run) + (0 if "mlp" in run.recompute.modules else inside) + _residual(run)


def experts(run: Training) -> float:
    """The router's, the shared expert's, and those of the tokens routed to this GPU, balanced."""
    e = run.network.experts
    p = run.parallel
    k = run.kernels
    net = run.network
    assert e is not None
    outside = _norm(run) + _residual(run)
    if "moe" in run.recompute.modules:
        return outside
    rows = run.own_tokens * e.chosen * p.expert_tensor
    first = k.number * (1 + net.gated) * _stays(run, "moe_act")
    weighted = k.linear_input + (0 if e.fused_weighting else k.number)
    if "moe_act" in run.recompute.modules:
        weighted = 0
    width = e.latent or net.hidden
    features = e.features / p.expert_tensor
    taken = width * k.linear_input * _stays(run, "expert_fc1")
    routed = rows * (taken + features * (first + weighted))
    shared = _activated(run, run.tokens, e.shared / p.tensor)
    if "shared_experts" in run.recompute.modules:
        shared = 0.0
    router = run.own_tokens * (3 * 4 * e.number + 2 * 2 * e.latent)
    return outside + router + routed + shared


def mamba(run: Training) -> float:
    """Its projection's output, and the scan's output before and after its norm and transposed."""
    m = run.network.mamba
    assert m is not None
    projected = 2 * m.inner + 2 * m.groups * m.state + m.heads
    numbers = run.kernels.number * (projected + 2 * m.inner) + run.kernels.linear_input * m.inner
    return _norm(run) + run.tokens * numbers / run.parallel.tensor + _residual(run)


PARTS = {"*": attention, "W": attention, "-": mlp, "E": experts, "M": mamba}


def layer(run: Training, parts: str) -> float:
    """Of one layer, nothing of it recomputed whole."""
    return sum(PARTS[part](run) for part in parts)


def stage(run: Training, layers: tuple[str, ...]) -> tuple[float, float]:
    """Kept by a stage's layers until their backward, and the layers recomputed at once then."""
    r = run.recompute
    recomputed = layers[: r.layers]
    groups = -(-len(recomputed) // r.group)
    inputs = groups * run.kernels.number * run.own_tokens * run.network.hidden
    whole = sum(n * layer(run, parts) for parts, n in Counter(layers[len(recomputed) :]).items())
    largest = max((layer(run, parts) for parts in set(recomputed)), default=0.0)
    return inputs + whole, min(r.group, len(recomputed)) * largest


def logits(run: Training) -> tuple[float, float]:
    """Of the loss: at its peak, and until the backward; the loss is on all tokens of a TP group."""
    numbers = run.tokens * run.network.vocabulary / run.parallel.tensor
    most, kept = run.kernels.logits
    return most * numbers, kept * numbers


def states(run: Training, rank: int) -> dict[str, float]:
    """By component, on a GPU of a pipeline rank."""
    s = run.states
    away = {"optimizer": s.on_host}
    if s.weights_on_host:
        away |= {"weights": 1.0, "gradients": 1.0}
    return {name: (1 - away.get(name, 0)) * size for name, size in _states(run, rank).items()}


def _states(run: Training, rank: int) -> dict[str, float]:
    """The same, wherever they are."""
    held = workload.parameters_of_rank(run.network, run.parallel, rank)
    s = run.states
    p = run.parallel
    dense = p.data / s.instances
    sharded = s.sharded or s.fully
    replicas = Held(dense, p.expert_data, dense) if sharded else Held(1, 1, 1)
    whole = Held(1, 1, 1) if not s.fully else replicas
    weights = _bytes(held, whole, s.weight)
    weights += s.linear_copies * (held.linear / whole.linear + held.experts / whole.experts)
    trained = held.times(s.trained)
    return {
        "weights": weights,
        "gradients": _bytes(trained, whole, s.gradient),
        "optimizer": _optimizer(run, trained, replicas),
    }


def _bytes(held: Held, replicas: Held, each: float) -> float:
    return each * sum(n / r for n, r in zip(held, replicas, strict=True))


def _optimizer(run: Training, held: Held, replicas: Held) -> float:
    s = run.states
    each = s.main + s.moments + s.main_gradient
    if not s.muon:
        return _bytes(held, replicas, each)
    matrices = held._replace(other=0)
    others = Held(other=held.other)
    alone = Held(1, 1, 1) if s.muon_whole else replicas
    return _bytes(matrices, replicas, each - s.moments / 2) + _bytes(others, alone, each)


def schedule(run: Training, rank: int) -> Iterator[tuple[str, int]]:
    """Forwards F and backwards B of a pipeline rank, with their chunk, in Megatron-Core's order."""
    p = run.parallel
    chunks = len(run.network.stages) // run.parallel.pipeline
    group = p.warmup_group or p.pipeline
    total = run.micro_batches * chunks
    behind = p.pipeline - rank - 1
    interleaved = 2 * behind + (chunks - 1) * group + p.extra_forward
    warmup = min(total, interleaved if chunks > 1 else behind)

    def chunk(step: int) -> int:
        return step % (group * chunks) // group

    for step in range(total + warmup):
        if step < total:
            yield "F", chunk(step)
        if step >= warmup:
            yield "B", chunks - 1 - chunk(step - warmup)


def activations(run: Training, rank: int) -> dict[str, float]:
    """What is kept at the peak; and on top of it the loss, or the layers recomputed."""
    p = run.parallel
    net = run.network
    mine = net.stages[rank :: p.pipeline]
    last = rank == p.pipeline - 1
    stages = [stage(run, layers) for layers in mine]
    kept = [bytes_kept for bytes_kept, _ in stages]
    recomputed = [again for _, again in stages]
    most, later = logits(run) if last else (0.0, 0.0)
    if last:
        kept[-1] += _ends(run, later)
    held = 0.0
    best = (0.0, 0.0, 0.0)
    for kind, chunk in schedule(run, rank):
        if kind == "F":
            held += kept[chunk]
            loss = most if chunk == len(mine) - 1 else 0.0
            best = max(best, (held, loss, 0.0), key=sum)
        else:
            best = max(best, (held, 0.0, recomputed[chunk]), key=sum)
            held -= kept[chunk]
    names = ("activations", "logits and log-probs", "recomputed layers")
    return dict(zip(names, best, strict=True))


def _ends(run: Training, logits: float) -> float:
    """Of the last stage's final norm, and of what predicts further tokens."""
    net = run.network
    norm = 2 * run.kernels.number * run.own_tokens * run.network.hidden
    depth = sum(layer(run, parts) + 2 * norm for depth in net.mtp for parts in depth)
    return norm + depth + len(net.mtp) * logits


def forward(run: Training) -> dict[str, float]:
    """Bytes of a pass for log-probs on the last rank, that keeps nothing for a backward."""
    rank = run.parallel.pipeline - 1
    kinds = set(chain.from_iterable(run.network.stages))
    largest = max(layer(run, parts) for parts in kinds)
    passing = {"activations": largest, "logits and log-probs": logits(run)[0]}
    return (
        states(run, rank) | gathered_weights(run) | passing | {"workspace": run.kernels.workspace}
    )


def gathered_weights(run: Training) -> dict[str, float]:
    """Whole layers in BF16 where weights are sharded: the one at work and the next."""
    if not run.states.fully:
        return {}
    layers = set()
    for stage in run.network.stages:
        for parts in stage:
            layers.add((parts,))
    largest = max(sum(of_layers(run.network, run.parallel, one)) for one in layers)
    return {"gathered layers": 2 * 2 * largest}


def bytes_of_rank(run: Training, rank: int) -> dict[str, float]:
    """Bytes by component on a pipeline rank, at their most."""
    parts = states(run, rank) | gathered_weights(run) | activations(run, rank)
    return parts | {"workspace": run.kernels.workspace}


def peak(run: Training) -> dict[str, float]:
    """Bytes by component on a GPU of the fullest pipeline rank."""
    ranks = (bytes_of_rank(run, rank) for rank in range(run.parallel.pipeline))
    return max(ranks, key=lambda parts: sum(parts.values()))


def sleeping(run: Setup) -> dict[str, float]:
    """Bytes of the engine on a GPU that trains."""
    if run.layout.colocated:
        return {"sleeping engine": SLEEPING}
    return {}


def weight_bytes(run: Setup, met: float = 1.0) -> float:
    """Of an engine's GPU, with this share of the experts; EP beyond TP spreads experts further."""
    m = run.model
    p = run.layout
    experts = m.having("E") * m.experts * m.expert
    ranks = p.generation_tensor * p.generation_pipeline
    wider = max(1.0, p.generation_expert / p.generation_tensor)
    each = 1 if run[f"{VLLM}.precision"] == "fp8" else 2
    return each * (m.parameters - experts + met * experts / wider) / ranks


def generation(run: Setup) -> dict[str, float]:
    """Bytes by component of an engine's GPU; the KV cache takes what is left of its share."""
    weights = max(0.0, weight_bytes(run) - (run[ENGINE_OFFLOADS] or 0) * GIB)
    share = (run[f"{VLLM}.gpu_memory_utilization"] or 0.9) * run.gpu.memory
    cache = max(0.0, share - weights - ENGINE_WORKSPACE)
    return {"weights": weights, "workspace": ENGINE_WORKSPACE, "KV cache": cache}


def sequence_bytes(run: Setup, tokens: float) -> float:
    """Of an engine's GPU for a sequence of `tokens`: keys and values, and recurrent states."""
    m = run.model
    p = run.layout
    number = 1 if str(run[f"{VLLM}.kv_cache_dtype"]).startswith("fp8") else 2
    split = 1 if m.attention.latent_kv else min(p.generation_tensor, m.attention.groups)
    seen = m.having("*") * tokens + m.having("W") * min(tokens, m.window)
    states = m.having("M") * m.mamba.cached / p.generation_tensor if m.mamba else 0.0
    return (number * m.attention.cached * seen / split + states) / p.generation_pipeline


def cached_sequences(run: Setup, tokens: float) -> float:
    """Sequences of `tokens` that an engine's cache holds."""
    return generation(run)["KV cache"] / sequence_bytes(run, tokens)


def on_host(run: Setup) -> dict[str, float]:
    """Bytes of a node's memory: the reference, and all that training and generation put there.

    A node is taken to hold GPUs of the fullest pipeline rank.
    """
    p = run.layout
    made = training(run)
    s = made.states
    compared = bool(run["loss_fn.reference_policy_kl_penalty"])
    updated = s.on_host * s.host_bytes / (s.main + s.moments)
    waiting = bool(run[LOGPROB_OFFLOADS]) and not p.colocated
    cache = (run[CACHE_OFFLOADS] or 0) * GIB / (p.generation_tensor * p.generation_pipeline)
    stays = replace(made, recompute=replace(made.recompute, offloaded=frozenset()))
    most: dict[str, float] = {}
    for rank in range(p.pipeline):
        whole = _states(made, rank)
        part = states(made, rank)
        moved = 0.0
        if made.recompute.offloaded:
            kept = activations(stays, rank)["activations"]
            moved = max(0.0, kept - activations(made, rank)["activations"])
        each: dict[str, float] = {
            "reference weights": compared * whole["weights"],
            "weights": whole["weights"] - part["weights"],
            "gradients": whole["gradients"] - part["gradients"],
            "optimizer": updated * whole["optimizer"],
            "activations": moved,
            "optimizer during log-probs": waiting * part["optimizer"],
            "offloaded while generating": p.colocated * (part["weights"] + part["optimizer"]),
            "engine": (run[ENGINE_OFFLOADS] or 0) * GIB + cache,
        }
        for name, size in each.items():
            most[name] = max(most.get(name, size), size)
    return {name: p.gpus_per_node * size for name, size in most.items()}

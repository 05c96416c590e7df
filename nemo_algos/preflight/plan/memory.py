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

ENGINE_WORKSPACE = 4e9  # vLLM's activations and CUDA graphs; assumed, not measured
GIB = 2**30
# GiB of each GPU's weights, and of each engine's cache, that vLLM keeps on the host
ENGINE_OFFLOADS = "policy.generation.vllm_kwargs.cpu_offload_gb"
CACHE_OFFLOADS = "policy.generation.vllm_kwargs.kv_offloading_size"
ALONE = Held(linear=1, experts=1, other=1)  # ranks that a copy is sharded over: not sharded
LOGPROB_OFFLOADS = "policy.offload_optimizer_for_logprob"
SLEEPING = 2e9  # what a sleeping vLLM keeps of a GPU that trains; assumed, not measured


def _norm(run: Training) -> float:
    """Its input, and its output that the next linear layer takes."""
    k = run.kernels
    kept = 0 if "layernorm" in run.recompute.modules else k.linear_input
    return run.own_tokens * run.network.hidden * (k.number + kept)


def _share_here(run: Training, module: str) -> int:
    """The share of a module's inputs that stays on the GPU: 1, or 0 where they are offloaded."""
    return int(module not in run.recompute.offloaded)


def _residual(run: Training) -> float:
    """The mask of the dropout before the residual is added: a byte each; none without dropout."""
    return run.own_tokens * run.network.hidden * run.kernels.hidden_dropout


def _scores(run: Training) -> float:
    """Bytes of the scores' probabilities, or of what the backward computes them from again.

    Unfused attention keeps a number for each pair of tokens, with dropout also its mask and result.
    Fused attention keeps one float32, the logarithm of the sum, for each token and head.
    """
    a = run.network.attention
    p = run.parallel
    k = run.kernels
    if "core_attn" in run.recompute.modules:
        return 0.0
    heads = a.heads / p.tensor
    if k.attention == "unfused":
        return k.score * heads * run.tokens * run.sequence
    copied = k.number * a.value_size if k.attention == "flash" else 0  # its output, transposed
    return run.tokens * heads * (4 + copied)  # 4: the logarithm


def attention(run: Training) -> float:
    """Bytes of queries, keys and values as the scores need them, and of the projection's input.

    And of its norm, the scores, and the dropout's mask.
    """
    a = run.network.attention
    p = run.parallel
    k = run.kernels
    heads = a.heads / p.tensor
    groups = max(a.groups, p.tensor) / p.tensor
    if k.attention == "unfused" or a.latent_kv:
        groups = heads  # keys and values are repeated
    # MLA's compressed queries and keys/values before and after their norms, and the rotary key
    ranks = 2 * (a.latent_query + a.latent_kv) + a.rotary
    compressed = k.number * run.own_tokens * ranks
    size = a.size + a.rotary
    # a token's queries, with as many numbers for the gate if there is one; its keys; its values
    mixed = k.number * (heads * size * (1 + a.gated) + groups * (size + a.value_size))
    if a.query_key_norm and not a.latent_kv:
        mixed += k.number * (heads + groups) * size  # queries and keys before their norms
    # computed again from `compressed`; or moved to the host, as the inputs of the scores
    if "mla_up_proj" in run.recompute.modules or not _share_here(run, "core_attn"):
        mixed = 0
    projected = k.linear_input * heads * a.value_size * _share_here(run, "attn_proj")
    inside = run.tokens * (mixed + projected)
    return _norm(run) + compressed + inside + _scores(run) + _residual(run)


def _activated(run: Training, rows: float, features: float) -> float:
    """Bytes before an MLP's activation, and after it, where the second projection reads."""
    first = run.kernels.number * (1 + run.network.gated)  # gated: two of that width
    return rows * features * (first + run.kernels.linear_input)


def mlp(run: Training) -> float:
    """Bytes of a dense layer's norm, MLP and dropout's mask."""
    inside = _activated(run, run.tokens, run.network.features / run.parallel.tensor)
    return _norm(run) + (0 if "mlp" in run.recompute.modules else inside) + _residual(run)


def experts(run: Training) -> float:
    """Bytes of router, shared expert, and the tokens routed to this GPU, as many as to any other.

    And of the layer's norm and its dropout's mask.
    """
    e = run.network.experts
    p = run.parallel
    k = run.kernels
    net = run.network
    assert e is not None
    outside = _norm(run) + _residual(run)
    if "moe" in run.recompute.modules:
        return outside
    # each token goes to `chosen` experts, and the ranks of an expert's TP group see the same rows
    rows = run.own_tokens * e.chosen * p.expert_tensor
    first = k.number * (1 + net.gated) * _share_here(run, "moe_act")  # before the activation
    # after it: weighted by the router's probability, the second projection's input; and before that
    weighted = k.linear_input + (0 if e.fused_weighting else k.number)
    if "moe_act" in run.recompute.modules:
        weighted = 0
    width = e.latent or net.hidden
    features = e.features / p.expert_tensor
    taken = width * k.linear_input * _share_here(run, "expert_fc1")  # the first projection's input
    routed = rows * (taken + features * (first + weighted))
    shared = _activated(run, run.tokens, e.shared / p.tensor)
    if "shared_experts" in run.recompute.modules:
        shared = 0.0
    # of each token: three float32 numbers for each expert (its logit, softmax, and probability as
    # the experts are given it); two BF16 vectors of the latent width, to the experts and back
    router = run.own_tokens * (3 * 4 * e.number + 2 * 2 * e.latent)
    return outside + router + routed + shared


def mamba(run: Training) -> float:
    """Bytes of the projection's output, and of the scan's: as it is, transposed, and normalised.

    And of its norm and its dropout's mask.
    """
    m = run.network.mamba
    assert m is not None
    # Mamba-2's z and x of `inner` each, B and C of `groups` x `state` each, and dt of `heads`
    projected = 2 * m.inner + 2 * m.groups * m.state + m.heads
    # the normalised output is the input of the last projection
    numbers = run.kernels.number * (projected + 2 * m.inner) + run.kernels.linear_input * m.inner
    return _norm(run) + run.tokens * numbers / run.parallel.tensor + _residual(run)


# by a part's letter in a layer (`decoder.Model`); W is attention within a window
PARTS = {"*": attention, "W": attention, "-": mlp, "E": experts, "M": mamba}


def layer(run: Training, parts: str) -> float:
    """Bytes of one layer of which nothing is recomputed whole; parts: its letters."""
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
    outside = p.data / s.instances  # ranks that share a copy of what lies outside experts
    replicas = Held(linear=outside, experts=p.expert_data, other=outside)
    of_optimizer = replicas if s.sharded or s.fully else ALONE
    of_weights = replicas if s.fully else ALONE
    weights = _bytes(held, of_weights, s.weight)
    weights += _bytes(held._replace(other=0), of_weights, s.linear_copies)
    trained = held.times(s.trained)
    return {
        "weights": weights,
        "gradients": _bytes(trained, of_weights, s.gradient),
        "optimizer": _optimizer(run, trained, of_optimizer),
    }


def _bytes(held: Held, ranks: Held, each: float) -> float:
    """Of numbers of `each` bytes, sharded over so many ranks."""
    return each * sum(n / r for n, r in zip(held, ranks, strict=True))


def _optimizer(run: Training, held: Held, ranks: Held) -> float:
    s = run.states
    each = s.main + s.moments + s.main_gradient
    if not s.muon:
        return _bytes(held, ranks, each)
    matrices = held._replace(other=0)
    others = Held(other=held.other)
    of_others = ALONE if s.muon_whole else ranks
    one_moment = each - s.moments / 2  # Muon's; its other parameters have Adam's two
    return _bytes(matrices, ranks, one_moment) + _bytes(others, of_others, each)


def schedule(run: Training, rank: int) -> Iterator[tuple[str, int]]:
    """Forwards F and backwards B of a pipeline rank, with their chunk, in Megatron-Core's order."""
    p = run.parallel
    chunks = len(run.network.stages) // run.parallel.pipeline
    group = p.warmup_group or p.pipeline
    total = run.micro_batches * chunks
    behind = p.pipeline - rank - 1
    # Megatron-Core's number of forwards before the first backward (get_pp_rank_microbatches)
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
    """Bytes of the last stage's final norm, and of what predicts further tokens.

    logits: bytes that a prediction's logits keep until the backward.
    """
    net = run.network
    norm = 2 * run.kernels.number * run.own_tokens * run.network.hidden  # its input and output
    # each layer with two more norms: of the hidden states, and of the next tokens' embeddings
    further = sum(layer(run, parts) + 2 * norm for layers in net.mtp for parts in layers)
    return norm + further + len(net.mtp) * logits


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
    kinds = set(chain.from_iterable(run.network.stages))
    largest = max(sum(of_layers(run.network, run.parallel, (parts,))) for parts in kinds)
    return {"gathered layers": 2 * (2 * largest)}  # two layers of 2 bytes a parameter


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
    share = (run[f"{VLLM}.gpu_memory_utilization"] or 0.9) * run.gpu.memory  # vLLM's own default
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
    # bytes there for each byte that the optimizer has, or would have, on a GPU
    updated = s.on_host * s.host_bytes / (s.main + s.moments + s.main_gradient)
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
        # a flag that is false makes its line 0
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

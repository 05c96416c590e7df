"""Bytes that the forward of a micro-batch leaves for the backward, by part of a layer.

Counted from the autograd functions of Megatron-Core and Transformer Engine; Korthikanti et al.
2022, "Reducing Activation Recomputation in Large Transformer Models", is the case of one kind of
layer. Numbers are of 2 bytes but where said; the input of a linear layer is kept in FP8 with FP8.
"""

from collections import Counter

from nemo_algos.preflight.plan.workload import Training


def _norm(run: Training) -> float:
    """Its input, and its output that the next linear layer takes."""
    k = run.kernels
    kept = 0 if "layernorm" in run.recompute.modules else k.linear_input
    return run.own_tokens * run.network.hidden * (k.number + kept)


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
    if "mla_up_proj" in run.recompute.modules:
        mixed = 0
    inside = run.tokens * (mixed + k.linear_input * heads * a.value_size)
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
    first = k.number * (1 + net.gated)
    weighted = k.linear_input + (0 if e.fused_weighting else k.number)
    if "moe_act" in run.recompute.modules:
        weighted = 0
    width = e.latent or net.hidden
    features = e.features / p.expert_tensor
    routed = rows * (width * k.linear_input + features * (first + weighted))
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

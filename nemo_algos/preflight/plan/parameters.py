"""Parameters that a GPU holds, by module, as Megatron-Core builds them."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from nemo_algos.preflight.check.decoder import Model
from nemo_algos.preflight.plan.workload import Experts, Network, Parallel


class Held(NamedTuple):
    """Numbers on one GPU: matrices of layers outside experts, of experts, and all others."""

    linear: float = 0.0
    experts: float = 0.0
    other: float = 0.0  # embeddings, norms, biases, convolutions

    def __add__(self, more: "Held") -> "Held":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Held(*(a + b for a, b in zip(self, more, strict=True)))

    def times(self, count: float) -> "Held":
        """So many of it."""
        return Held(*(count * n for n in self))


def attention(net: Network, p: Parallel) -> Held:
    """Its norm, projections and biases; a key/value group is copied where TP exceeds them."""
    a = net.attention
    h = net.hidden
    norm = net.norm_vectors * h
    heads = a.heads / p.tensor
    groups = max(a.groups, p.tensor) / p.tensor
    if a.latent_kv:
        query = a.latent_query * h + (a.latent_query or h) * heads * (a.size + a.rotary)
        down = h * (a.latent_kv + a.rotary)
        up = a.latent_kv * heads * (a.size + a.value_size)
        norms = norm + net.norm_vectors * (a.latent_query + a.latent_kv)
        return Held(linear=query + down + up + heads * a.value_size * h, other=norms)
    mixed = (heads * (1 + a.gated) + 2 * groups) * a.size
    norms = norm + 2 * a.query_key_norm * net.norm_vectors * a.size
    biases = mixed * (net.bias or net.query_bias) + h * net.bias
    return Held(linear=h * (mixed + heads * a.size), other=norms + biases)


def _mlp(net: Network, width: int, features: float) -> float:
    return (2 + net.gated) * width * features


def mlp(net: Network, p: Parallel) -> Held:
    """A dense layer's norm and MLP."""
    f = net.features / p.tensor
    h = net.hidden
    biases = net.bias * ((1 + net.gated) * f + h)
    return Held(linear=_mlp(net, h, f), other=net.norm_vectors * h + biases)


def experts(net: Network, p: Parallel) -> Held:
    """A mixture's norm, router, latent projections, shared expert and its share of the experts."""
    e = _of(net)
    h = net.hidden
    each = _mlp(net, e.latent or h, e.features / p.expert_tensor)
    outside = h * e.number + 2 * h * e.latent + _mlp(net, h, e.shared / p.tensor)
    return Held(outside, e.number / p.expert * each, net.norm_vectors * h)


def _of(net: Network) -> Experts:
    assert net.experts is not None, "a layer E belongs to a network with experts"
    return net.experts


def mamba(net: Network, p: Parallel) -> Held:
    """A mixer's norms, projections, convolution, and three vectors of its heads."""
    m = net.mamba
    h = net.hidden
    assert m is not None, "a layer M belongs to a network with Mamba"
    convolved = m.inner + 2 * m.groups * m.state
    linear = h * (m.inner + convolved + m.heads) + m.inner * h
    vectors = convolved * (m.convolution + 1) + 3 * m.heads + m.inner
    return Held(linear / p.tensor, 0.0, vectors / p.tensor + net.norm_vectors * h)


PARTS = {"*": attention, "W": attention, "-": mlp, "E": experts, "M": mamba}


def of_layers(net: Network, p: Parallel, layers: tuple[str, ...]) -> Held:
    """Of these layers."""
    counts = Counter("".join(layers))
    return sum((PARTS[part](net, p).times(n) for part, n in counts.items()), Held())


def of_rank(net: Network, p: Parallel, rank: int) -> Held:
    """Of a pipeline rank: every p-th (virtual) stage, with the ends it has."""
    last = rank == p.pipeline - 1
    held = sum((of_layers(net, p, s) for s in net.stages[rank :: p.pipeline]), Held())
    table = net.vocabulary * net.hidden / p.tensor
    norm = net.norm_vectors * net.hidden
    if rank == 0:
        held += Held(other=table + net.positions * net.hidden + net.encoders)
    if last:
        alone = p.pipeline == 1 and net.tied
        held += Held(other=norm + (0 if alone else table))
        for layers in net.mtp:
            projection = Held(linear=2 * net.hidden**2 / p.tensor, other=3 * norm)
            held += projection + of_layers(net, p, layers)
        if net.mtp and rank > 0 and not net.tied:  # MTP embeds its tokens on its own stage
            held += Held(other=table)
    return held


def network(model: Model, stages: tuple[tuple[str, ...], ...], fused: bool = False) -> Network:
    """Of a model's facts, its layers cut into these stages."""
    m = model
    return Network(
        stages=stages,
        hidden=m.hidden_size,
        features=m.intermediate_size,
        vocabulary=m.vocab_size,
        attention=m.attention,
        experts=replace(m.mixture, fused_weighting=fused) if m.mixture else None,
        mamba=m.mamba,
        gated=m.gated,
        tied=m.tied,
        bias=m.bias,
        query_bias=m.query_bias,
        norm_vectors=m.norm_vectors,
        encoders=m.encoders,
    )


def whole(model: Model) -> float:
    """Parameters of the model as its shapes explain them, on one GPU."""
    return sum(of_rank(network(model, (model.layers,)), Parallel(1), 0))

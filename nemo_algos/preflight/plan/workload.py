"""What a training run is, as far as its memory goes, and the parameters that a GPU holds.

The typed inputs of memory.py; parameters by module, as Megatron-Core builds them.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nemo_algos.preflight.check.decoder import Attention, Experts, Mamba, Model


@dataclass(frozen=True)
class Network:
    """A decoder. `stages` are its layers in order of the (virtual) pipeline stages.

    A layer is a string of its parts (`decoder.Model` has the letters), each with its own norm and
    residual: a transformer's layer is `*-` or `*E`, a hybrid's one letter. `mtp` are the layers of
    each multi-token prediction depth, all on the last stage.
    """

    stages: tuple[tuple[str, ...], ...]
    hidden: int
    features: int  # of the MLP
    vocabulary: int  # padded
    attention: Attention
    experts: Experts | None = None
    mamba: Mamba | None = None
    mtp: tuple[tuple[str, ...], ...] = ()
    gated: bool = True
    tied: bool = False
    bias: bool = False
    query_bias: bool = False  # of queries, keys and values alone
    norm_vectors: int = 1  # RMSNorm; 2: LayerNorm
    positions: int = 0  # learned ones
    encoders: int = 0  # parameters beside the decoder, whole on the first stage


@dataclass(frozen=True)
class Parallel:
    """Sizes of the groups."""

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False
    warmup_group: int = 0  # micro-batches of a chunk in a row, interleaved; 0: the pipeline's size
    extra_forward: bool = False  # one more before the first backward, to overlap expert all-to-all

    @property
    def data(self) -> float:
        """Replicas of what lies outside experts, context-parallel ranks included."""
        return self.gpus / (self.tensor * self.pipeline)

    @property
    def expert_data(self) -> float:
        """Replicas of the experts."""
        return self.gpus / (self.expert * self.expert_tensor * self.pipeline)


@dataclass(frozen=True)
class States:
    """Bytes of a parameter's numbers, and what is sharded over its replicas."""

    weight: float = 2
    linear_copies: float = 0  # of a linear layer's weight, cached in FP8
    gradient: float = 4
    main: float = 4  # master weight
    moments: float = 8
    main_gradient: float = 0  # a copy in float32 where gradients are in fp16
    sharded: bool = True  # optimizer; with `fully` weights and gradients too
    fully: bool = False
    instances: int = 1  # of the distributed optimizer
    trained: float = 1.0  # share of the parameters with gradients
    on_host: float = 0.0  # share of the optimizer's
    host_bytes: float = 16  # there: moments, and float32 copies of weight and gradient
    weights_on_host: bool = False  # with their gradients
    muon: bool = False  # one moment for matrices of layers
    muon_whole: bool = False  # its other parameters lie whole on a rank


@dataclass(frozen=True)
class Kernels:
    """What the implementation keeps."""

    attention: str = "fused"  # fused | flash | unfused
    number: float = 2  # bytes of an activation; 4 in float32
    linear_input: float = 2  # of a saved input of a linear layer; 1 in FP8
    score: float = 2  # of a kept attention probability, unfused; 5 with dropout's mask and result
    hidden_dropout: bool = False
    logits: tuple[float, float] = (6, 4)  # bytes a logit at most, and until the backward
    workspace: float = 0.0


@dataclass(frozen=True)
class Recompute:
    """`layers` of each stage, in groups of `group`; or `modules` of every layer.

    offloaded: modules whose inputs wait on the host.
    """

    layers: int = 0
    group: int = 1
    modules: frozenset[str] = frozenset()
    offloaded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Training:
    """All of it."""

    network: Network
    parallel: Parallel
    sequence: int
    micro_batch: float  # sequences
    micro_batches: int
    states: States = field(default_factory=States)
    kernels: Kernels = field(default_factory=Kernels)
    recompute: Recompute = field(default_factory=Recompute)

    @property
    def tokens(self) -> float:
        """Of a micro-batch on a context-parallel rank."""
        return self.micro_batch * self.sequence / self.parallel.context

    @property
    def own_tokens(self) -> float:
        """Those between tensor-parallel regions: split by sequence parallelism."""
        return self.tokens / (self.parallel.tensor if self.parallel.sequence else 1)


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
    """Parameters of norm, projections, biases; where TP exceeds key/value groups, these repeat."""
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
    """Parameters of a dense layer's norm and MLP."""
    f = net.features / p.tensor
    h = net.hidden
    biases = net.bias * ((1 + net.gated) * f + h)
    return Held(linear=_mlp(net, h, f), other=net.norm_vectors * h + biases)


def experts(net: Network, p: Parallel) -> Held:
    """Parameters of norm, router, latent projections, shared expert, and a share of the experts."""
    assert net.experts is not None, "a layer E belongs to a network with experts"
    e = net.experts
    h = net.hidden
    each = _mlp(net, e.latent or h, e.features / p.expert_tensor)
    outside = h * e.number + 2 * h * e.latent + _mlp(net, h, e.shared / p.tensor)
    return Held(outside, e.number / p.expert * each, net.norm_vectors * h)


def mamba(net: Network, p: Parallel) -> Held:
    """Parameters of a mixer's norms, projections, convolution, and three vectors of its heads."""
    m = net.mamba
    h = net.hidden
    assert m is not None, "a layer M belongs to a network with Mamba"
    convolved = m.inner + 2 * m.groups * m.state
    linear = h * (m.inner + convolved + m.heads) + m.inner * h
    vectors = convolved * (m.convolution + 1) + 3 * m.heads + m.inner
    return Held(linear / p.tensor, 0.0, vectors / p.tensor + net.norm_vectors * h)


# by a part's letter in a layer (`decoder.Model`); W is attention within a window
PARTS = {"*": attention, "W": attention, "-": mlp, "E": experts, "M": mamba}


def of_layers(net: Network, p: Parallel, layers: tuple[str, ...]) -> Held:
    """The parameters of these layers on one GPU."""
    counts = Counter("".join(layers))
    return sum((PARTS[part](net, p).times(n) for part, n in counts.items()), Held())


def parameters_of_rank(net: Network, p: Parallel, rank: int) -> Held:
    """The parameters of a pipeline rank: every p-th (virtual) stage, with the ends it has."""
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
    return sum(parameters_of_rank(network(model, (model.layers,)), Parallel(1), 0))

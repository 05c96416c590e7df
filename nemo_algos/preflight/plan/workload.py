"""What a training run is, as far as its memory goes: the typed inputs of memory.py."""

from dataclasses import dataclass, field

from nemo_algos.preflight.check.decoder import Attention, Experts, Mamba


@dataclass(frozen=True)
class Network:
    """A decoder. `stages` are its layers in order of the (virtual) pipeline stages.

    A layer is a string of its parts, each with its own norm and residual: `*` attention, `W` within
    a window, `-` MLP, `E` experts, `M` a recurrent mixer; a transformer's layer is `*-` or `*E`, a
    hybrid's one letter. `mtp` are the layers of each multi-token prediction depth, all on the last
    stage.
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
    """`layers` of each stage, in groups of `group`; or `modules` of every layer."""

    layers: int = 0
    group: int = 1
    modules: frozenset[str] = frozenset()


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

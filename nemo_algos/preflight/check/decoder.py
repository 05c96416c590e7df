"""What a decoder is, as far as layouts, memory and time depend on it; its linear layers by name."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

ROUTER = "mlp.gate"  # which no engine quantises
PLAIN = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
Parts = dict[str, tuple[str, ...]]  # a module of vLLM: its parameters in a checkpoint


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; with `latent_kv` multi-head latent attention (MLA)."""

    heads: int
    groups: int  # of keys and values
    size: int  # of a query's and a key's head; MLA: without the rotary part
    value_size: int
    query_key_norm: bool = False
    latent_query: int = 0  # rank; 0: queries straight from the hidden state
    latent_kv: int = 0
    rotary: int = 0  # MLA's part of a head with positions
    gated: bool = False  # the output times a gate, which the queries' projection makes too

    def matrices(self, hidden: int) -> int:
        """Numbers of its projections."""
        key = self.size + self.rotary
        out = self.heads * self.value_size * hidden
        if self.latent_kv:
            down = hidden * (self.latent_query + self.latent_kv + self.rotary)
            up = self.latent_kv * self.heads * (self.size + self.value_size)
            return down + (self.latent_query or hidden) * self.heads * key + up + out
        return hidden * (self.heads * (1 + self.gated) + 2 * self.groups) * self.size + out

    @property
    def cached(self) -> int:
        """Numbers that the KV cache keeps per token and layer."""
        if self.latent_kv:
            return self.latent_kv + self.rotary
        return self.groups * (self.size + self.value_size)


@dataclass(frozen=True)
class Experts:
    """A mixture's layer: routed experts, and a shared one of `shared` features."""

    number: int
    chosen: int
    features: int
    shared: int = 0
    latent: int = 0  # the width that routed experts see; 0: the hidden size
    fused_weighting: bool = False  # activation and router probability in one kernel


@dataclass(frozen=True)
class Mamba:
    """A recurrent mixer: Mamba-2, or a gated delta net, whose keys are `groups` x `state`."""

    inner: int
    heads: int
    state: int = 128
    groups: int = 8
    convolution: int = 4

    @property
    def cached(self) -> int:
        """Bytes that an engine keeps per sequence and layer: float32 states, BF16 convolution."""
        convolved = self.inner + 2 * self.groups * self.state
        return 4 * self.inner * self.state + 2 * (self.convolution - 1) * convolved


class Model(BaseModel):
    """A decoder, read off the modules that transformers builds of its config.json.

    A layer is a string of its parts: `*` attention, `W` attention within a window, `M` a recurrent
    mixer, `-` MLP, `E` experts. `parameters` are all, `encoders` those outside the decoder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_type: str
    layers: tuple[str, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    attention: Attention
    mixture: Experts | None = None
    mamba: Mamba | None = None
    window: int = 0
    gated: bool = True
    tied: bool = False
    bias: bool = False
    query_bias: bool = False
    norm_vectors: int = 1  # RMSNorm; 2: LayerNorm
    parameters: int
    encoders: int = 0

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 of a dense model."""
        return self.mixture.number if self.mixture else 0

    @property
    def expert(self) -> int:
        """Parameters of one routed expert."""
        e = self.mixture
        if e:
            return (2 + self.gated) * (e.latent or self.hidden_size) * e.features
        return 0

    @property
    def active_parameters(self) -> int:
        """Those that a token meets, its row of the embedding counted as the whole."""
        unmet = self.mixture.number - self.mixture.chosen if self.mixture else 0
        return self.parameters - self.encoders - self.having("E") * unmet * self.expert

    def having(self, part: str) -> int:
        """The number of layers with a part of this letter."""
        return sum(part in layer for layer in self.layers)


def modules(model: Model, layer: int) -> Parts:
    """The linear modules of a layer, the router among them, below `model.layers.N.`.

    None of a family whose names are others.
    """
    if model.model_type not in PLAIN:
        return {}
    latent = "kv_a_proj_with_mqa"
    names = ["qkv_proj", "o_proj"]
    if model.attention.latent_query:
        names = ["fused_qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj"]
    elif model.attention.latent_kv:
        names = ["q_proj", latent, "kv_b_proj", "o_proj"]
    fused = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "fused_qkv_a_proj": ["q_a_proj", latent]}
    parts: Parts = {}
    for name in names:
        parts[f"self_attn.{name}"] = tuple(f"self_attn.{part}" for part in fused.get(name, [name]))
    return parts | (_experts(model) if "E" in model.layers[layer] else _gated("mlp"))


def _gated(name: str) -> Parts:
    gated = (f"{name}.gate_proj", f"{name}.up_proj")
    return {f"{name}.gate_up_proj": gated, f"{name}.down_proj": (f"{name}.down_proj",)}


def _experts(model: Model) -> Parts:
    """All experts of a layer are one module, left out whole if either parameter is."""
    routed = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    shared = _gated("mlp.shared_experts") if model.mixture and model.mixture.shared else {}
    return {"mlp.experts": routed, ROUTER: (ROUTER,)} | shared

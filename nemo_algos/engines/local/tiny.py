"""A tiny Llama (RMSNorm, RoPE, SwiGLU, tied embeddings) that computes a group's prompt once.

With experts it is a tiny Mixtral: a router sends each token to two of them.
Shapes: P prompts of L tokens, B responses of S tokens, N prefixes (a prompt and the start of a
response) of T tokens, D width, H heads, E = D / H, V tokens; K experts of a token, 0 without.
Left out on purpose: padding of prompts (a task's prompts have one length), grouped-query attention,
dropout, biases.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_algos.engines.data.countdown import EOS, PAD, VOCABULARY
from nemo_algos.engines.local.schema import Shape

EXPERTS_PER_TOKEN = 2


class TopExperts(nn.Module):
    """The experts that a router says; a module, so that a hook can say others."""

    def forward(self, logits: Tensor) -> Tensor:
        """logits [...,experts] -> [...,K], the likeliest first."""
        return logits.topk(EXPERTS_PER_TOKEN).indices


class Router(nn.Module):
    """Which experts a token is sent to, and their weights: a softmax over those."""

    def __init__(self, c: Shape) -> None:
        super().__init__()
        self.gate, self.top = nn.Linear(c.width, c.experts, bias=False), TopExperts()

    def forward(self, x: Tensor, replayed: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [...,D] -> weights [...,experts], 0 off the chosen, and the router's own [...,K].

        replayed [...,K]: chosen in their place.
        """
        logits = self.gate(x)
        own: Tensor = self.top(logits)
        chosen = own if replayed is None else replayed
        among = logits.gather(-1, chosen).softmax(-1)
        return torch.zeros_like(logits).scatter(-1, chosen, among), own


ROPE_THETA = 10_000.0
ROOM = 8  # tokens that a cache grows by: it is copied where it is full, and where prefixes part
# keys and values of each layer, [N,H,T and room,E], and the experts of its tokens, [N,T,K]
Cache = list[tuple[Tensor, Tensor, Tensor]]


class Layer(nn.Module):
    """Attention and SwiGLU, or experts that are SwiGLUs, pre-norm."""

    def __init__(self, c: Shape) -> None:
        super().__init__()
        self.heads = c.heads
        self.attention_norm = nn.RMSNorm(c.width, eps=1e-6)
        self.qkv = nn.Linear(c.width, 3 * c.width, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)
        self.mlp_norm = nn.RMSNorm(c.width, eps=1e-6)
        self.gate_up = nn.Linear(c.width, 2 * c.experts * c.hidden, bias=False)
        self.down = nn.Linear(c.experts * c.hidden, c.width, bias=False)
        self.router = Router(c) if c.experts > 1 else None

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """x [M,D] -> rotated queries and keys, values, each [M,H,E]."""
        m, d = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(m, 3 * self.heads, d // self.heads)
        q_and_k, v = qkv.split([2 * self.heads, self.heads], dim=1)
        q, k = rotate(q_and_k, rotation).split(self.heads, dim=1)
        return q, k, v

    def finish(
        self, x: Tensor, attended: Tensor, replayed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x, attended [M,D] -> the residual stream behind the MLP; the router's experts [M,K].

        All experts are computed, and those that are not chosen weigh 0.
        """
        x = x + self.out(attended)
        normed = self.mlp_norm(x)
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        hidden = F.silu(gate) * up
        if self.router is None:
            return x + self.down(hidden), hidden.new_zeros((len(x), 0), dtype=torch.long)
        weights, experts = self.router(normed, replayed)
        hidden = hidden.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None]
        return x + self.down(hidden.flatten(-2)), experts


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding on [M,H,E]; rotation = cos, sin [M,1,E]."""
    cos, sin = rotation
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Tiny(nn.Module):
    """The model. `response_logits` trains, `prompt` and `step` decode."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(len(VOCABULARY), shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.05)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [M,1,E] at positions [M]."""
        e = self.shape.width // self.shape.heads
        inverse = ROPE_THETA ** -(torch.arange(0, e, 2, device=positions.device) / e)
        angles = positions[:, None] * inverse
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos(), angles.sin()

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states -> logits, tied to the embedding."""
        return F.linear(self.norm(x), self.embed.weight)

    def prompt(self, prompts: Tensor) -> tuple[Tensor, Cache]:
        """prompts [P,L] -> last hidden state [P,D], and the cache."""
        count, length = prompts.shape
        x = self.embed(prompts.flatten())
        rotation = self._rotation(torch.arange(length, device=x.device).repeat(count))
        cache = []
        for layer in self._layers():
            q, k, v = (_by_row(y, count) for y in layer.project(x, rotation))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x, experts = layer.finish(x, _by_token(attended))
            cache.append((k, v, experts.unflatten(0, (count, length))))
        return x.unflatten(0, (count, length))[:, -1], cache

    def response_logits(self, prompts: Tensor, group: Tensor, responses: Tensor) -> Tensor:
        """Logits [B,S,V] for responses [B,S] to prompts[group]; a prompt is computed once."""
        return self.routed_logits(prompts, group, responses)[0]

    def routed_logits(
        self, prompts: Tensor, group: Tensor, responses: Tensor, replayed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As response_logits; and of all tokens but the last the routers' experts.

        The linear layers see prompts and responses as one list of M tokens. replayed: experts, as
        they [B,L+S-1,layers,K], that the tokens are sent to; one prompt's are alike.
        """
        p, length = prompts.shape
        b, s = responses.shape[0], responses.shape[1] - 1
        sizes = [p * length, b * s]
        device = responses.device
        x = self.embed(torch.cat((prompts.flatten(), responses[:, :-1].flatten())))
        places = torch.arange(length + s, device=device)
        rotation = self._rotation(torch.cat((places[:length].repeat(p), places[length:].repeat(b))))
        visible = torch.ones(s, length + s, dtype=torch.bool, device=device).tril(length)
        routes = [None] * len(self.layers)
        if replayed is not None:
            of_prompt = replayed.new_empty((p, *replayed[0, :length].shape))
            of_prompt[group] = replayed[:, :length]
            of_token = (of_prompt.flatten(0, 1), replayed[:, length:].flatten(0, 1))
            routes = torch.cat(of_token).unbind(1)
        own = list[Tensor]()
        for layer, of_layer in zip(self._layers(), routes, strict=True):
            projected = [y.split(sizes) for y in layer.project(x, rotation)]
            q, k, v = (_by_row(of_prompts, p) for of_prompts, _ in projected)
            trunk = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            prompt_k, prompt_v = k.index_select(0, group), v.index_select(0, group)
            q, k, v = (_by_row(of_responses, b) for _, of_responses in projected)
            k = torch.cat((prompt_k, k), 2)
            v = torch.cat((prompt_v, v), 2)
            branches = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            x, experts = layer.finish(
                x, torch.cat((_by_token(trunk), _by_token(branches))), of_layer
            )
            first, later = experts.split(sizes)
            own.append(
                torch.cat((first.unflatten(0, (p, length))[group], later.unflatten(0, (b, s))), 1)
            )
        first, later = x.split(sizes)
        last = first.unflatten(0, (p, length))[:, -1].index_select(0, group)
        logits = self.logits(torch.cat((last[:, None], later.unflatten(0, (b, s))), dim=1))
        return logits, torch.stack(own, 2)

    def step(self, tokens: Tensor, parents: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Last hidden state [N,D] and cache of the prefixes `parents` [N], each with a token more.

        parents ascend and leave none of the cache out; a cache goes on once, in place.
        """
        length = cache[0][2].shape[1]
        x = self.embed(tokens)
        rotation = self._rotation(torch.full((1,), length, device=x.device))
        grown: Cache = []
        for layer, (keys, values, earlier) in zip(self._layers(), cache, strict=True):
            q, k, v = layer.project(x, rotation)
            if len(parents) > len(keys):  # else each prefix goes on once
                keys = keys.index_select(0, parents)
                values = values.index_select(0, parents)
                earlier = earlier.index_select(0, parents)
            keys = _put(keys, length, k)
            values = _put(values, length, v)
            until = slice(length + 1)
            attended = F.scaled_dot_product_attention(
                q[:, :, None], keys[:, :, until], values[:, :, until]
            )
            x, experts = layer.finish(x, attended.flatten(1))
            grown.append((keys, values, torch.cat((earlier, experts[:, None]), 1)))
        return x, grown

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]


def _by_row(x: Tensor, rows: int) -> Tensor:
    """[M,H,E] of M / rows tokens each -> [rows,H,T,E]."""
    return x.unflatten(0, (rows, -1)).transpose(1, 2)


def _by_token(attended: Tensor) -> Tensor:
    """[rows,H,T,E] -> [M,D]."""
    return attended.transpose(1, 2).flatten(2).flatten(0, 1)


def _put(cached: Tensor, length: int, new: Tensor) -> Tensor:
    """cached [N,H,T,E] with new [N,H,E] behind its first tokens."""
    if cached.shape[2] == length:
        cached = F.pad(cached, (0, 0, 0, ROOM))
    cached[:, :, length] = new
    return cached


def hf_state(model: Tiny) -> dict[str, Tensor]:
    """The weights under transformers' names (tied embeddings)."""
    embed = model.embed.weight
    norm = model.norm.weight
    state = {"model.embed_tokens.weight": embed, "model.norm.weight": norm}
    for i, layer in enumerate(model._layers()):
        q, k, v = layer.qkv.weight.chunk(3)
        names = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out.weight,
            "input_layernorm": layer.attention_norm.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
            **_mlp(layer, model.shape.experts),
        }
        for name, weight in names.items():
            state[f"model.layers.{i}.{name}.weight"] = weight
    return {name: weight.detach().clone().contiguous() for name, weight in state.items()}


def _mlp(layer: Layer, experts: int) -> dict[str, Tensor]:
    """The MLP, or the router and w1 (gate), w2 (down), w3 (up) of every expert."""
    gate, up = layer.gate_up.weight.chunk(2)
    if layer.router is None:
        return {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.down.weight}
    weights = {"w1": gate.chunk(experts), "w3": up.chunk(experts)}
    weights["w2"] = layer.down.weight.chunk(experts, 1)
    every = {}
    for w, of in weights.items():
        for j in range(experts):
            every[f"experts.{j}.{w}"] = of[j]
    block = {"gate": layer.router.gate.weight, **every}
    return {f"block_sparse_moe.{name}": weight for name, weight in block.items()}


def hf_config(shape: Shape) -> dict[str, object]:
    """config.json for transformers."""
    family: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if shape.experts > 1:
        family = {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": shape.experts,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
        }
    return {
        **family,
        "vocab_size": len(VOCABULARY),
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }

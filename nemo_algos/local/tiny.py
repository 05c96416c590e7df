"""A tiny Llama (RMSNorm, RoPE, SwiGLU, tied embeddings) that computes a group's prompt once.

Shapes: P prompts of L tokens, B responses of S tokens, N prefixes (a prompt and the start of a
response) of T tokens, D width, H heads, E = D / H, V tokens.
Left out on purpose: padding of prompts (a task's prompts have one length), grouped-query attention,
dropout, biases. `hf_state` names the weights as transformers' LlamaForCausalLM does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_algos.data.countdown import EOS, PAD, VOCABULARY
from nemo_algos.local.schema import Shape

ROPE_THETA = 10_000.0
Cache = list[tuple[Tensor, Tensor]]  # keys and values of each layer, [N,H,T,E]


class Layer(nn.Module):
    """Attention and SwiGLU, pre-norm."""

    def __init__(self, c: Shape) -> None:
        super().__init__()
        self.heads = c.heads
        self.attention_norm = nn.RMSNorm(c.width, eps=1e-6)
        self.qkv = nn.Linear(c.width, 3 * c.width, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)
        self.mlp_norm = nn.RMSNorm(c.width, eps=1e-6)
        self.gate_up = nn.Linear(c.width, 2 * c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """x [B,T,D] -> rotated queries and keys, values, each [B,H,T,E]."""
        b, t, d = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(b, t, 3 * self.heads, d // self.heads)
        q_and_k, v = qkv.split([2 * self.heads, self.heads], dim=2)
        q, k = rotate(q_and_k, rotation).transpose(1, 2).chunk(2, dim=1)
        return q, k, v.transpose(1, 2)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual of the attention, then the MLP."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding on [B,T,H,E]; rotation = cos, sin [T,1,E]."""
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

    def _rotation(self, start: int, length: int) -> tuple[Tensor, Tensor]:
        e = self.shape.width // self.shape.heads
        device = self.embed.weight.device
        inverse = ROPE_THETA ** -(torch.arange(0, e, 2, device=device) / e)
        angles = torch.arange(start, start + length, device=device)[:, None] * inverse
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos(), angles.sin()

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states -> logits, tied to the embedding."""
        return F.linear(self.norm(x), self.embed.weight)

    def prompt(self, prompts: Tensor) -> tuple[Tensor, Cache]:
        """prompts [P,L] -> last hidden state [P,D], and the cache."""
        x, rotation, cache = self.embed(prompts), self._rotation(0, prompts.shape[1]), []
        for layer in self._layers():
            q, k, v = layer.project(x, rotation)
            cache.append((k, v))
            x = layer.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x[:, -1], cache

    def response_logits(self, prompts: Tensor, group: Tensor, responses: Tensor) -> Tensor:
        """Logits [B,S,V] for responses [B,S] to prompts[group]; a prompt is computed once."""
        first, cache = self.prompt(prompts)
        s, length = responses.shape[1] - 1, prompts.shape[1]
        x, rotation = self.embed(responses[:, :-1]), self._rotation(length, s)
        visible = torch.ones(s, length + s, dtype=torch.bool, device=x.device).tril(length)
        for layer, (prompt_k, prompt_v) in zip(self._layers(), cache, strict=True):
            q, k, v = layer.project(x, rotation)
            k, v = torch.cat((prompt_k[group], k), 2), torch.cat((prompt_v[group], v), 2)
            x = layer.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=visible))
        return self.logits(torch.cat((first[group][:, None], x), dim=1))

    def step(self, tokens: Tensor, parents: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Last hidden state [N,D] and cache of the prefixes `parents` [N], each with a token more.

        parents ascend and leave none of the cache out.
        """
        x, rotation = self.embed(tokens)[:, None], self._rotation(cache[0][0].shape[2], 1)
        grown: Cache = []
        for layer, (keys, values) in zip(self._layers(), cache, strict=True):
            q, k, v = layer.project(x, rotation)
            if len(parents) > len(keys):  # else each prefix goes on once
                keys, values = keys[parents], values[parents]
            k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
            grown.append((k, v))
            x = layer.finish(x, F.scaled_dot_product_attention(q, k, v))
        return x[:, 0], grown

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]


def hf_state(model: Tiny) -> dict[str, Tensor]:
    """The weights under transformers' names for LlamaForCausalLM (tied embeddings)."""
    embed, norm = model.embed.weight, model.norm.weight
    state = {"model.embed_tokens.weight": embed, "model.norm.weight": norm}
    for i, layer in enumerate(model._layers()):
        q, k, v = layer.qkv.weight.chunk(3)
        gate, up = layer.gate_up.weight.chunk(2)
        names = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down.weight,
            "input_layernorm": layer.attention_norm.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
        }
        state |= {f"model.layers.{i}.{name}.weight": weight for name, weight in names.items()}
    return {name: weight.detach().clone().contiguous() for name, weight in state.items()}


def hf_config(shape: Shape) -> dict[str, object]:
    """config.json for transformers."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(VOCABULARY),
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }

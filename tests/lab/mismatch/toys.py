"""The models in which mismatches are planted: the embedded engine's, small ones of transformers."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers as hf
from sides import Prompts, Toy
from torch import Tensor, nn

from nemo_algos.engines.data import countdown as task
from nemo_algos.engines.local import tiny_hf
from nemo_algos.engines.local.schema import Shape
from nemo_algos.engines.local.tiny_policy import warm_start

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SAMPLES = 8  # to a prompt


def countdown(rows: int = 160, seed: int = 0) -> Toy:
    """The embedded engine's model, asked with two, three and four numbers."""
    weights = tiny_hf.hf_state(warm_start(task.Rules(), 0, lambda share: None))
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**tiny_hf.hf_config(Shape()))).eval()
    assert not model.load_state_dict(weights, strict=False).unexpected_keys
    rng = random.Random(seed)
    puzzles = [
        task.sample(rng, task.Rules(rng.choice((2, 3, 4))))[0] for _ in range(rows // SAMPLES)
    ]
    asked = [task.tokens_of(f"{puzzle} :")[:-1] for puzzle in puzzles]
    generator = torch.Generator().manual_seed(seed)
    return Toy(model, padded(asked, task.PAD), generator, length=12, end=task.EOS)


def taught(kind: str, seed: int = 0, rows: int = 160, steps: int = 150) -> Toy:
    """A small model, taught some steps of `text`; responses of 24 tokens to prompts of 4 to 16."""
    torch.manual_seed(seed)
    model, generator = made(kind), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        ids = text(32, 32, generator)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    lengths = torch.randint(4, 17, (rows // SAMPLES,), generator=generator).tolist()
    asked = [text(1, n, generator)[0].tolist() for n in lengths]
    return Toy(model.eval(), padded(asked, 0), generator, length=24)


def made(kind: str) -> nn.Module:
    if kind == "mixtral":
        config = hf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
        config._experts_implementation = "eager"  # grouped_mm knows no float64
        return hf.MixtralForCausalLM(config)
    if kind == "qwen":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, tie_word_embeddings=True))
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES))


def text(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Ids whose next is near a function of the last two, or, one in ten, any."""
    ids = torch.randint(4, 96, (rows, 2), generator=generator)
    while ids.shape[1] < size:
        near = ids[:, -1] * 3 + ids[:, -2] % 2
        near = near + (torch.randn(rows, generator=generator) * 1.5).round().long()
        other = torch.randint(0, 92, (rows,), generator=generator)
        any_id = torch.rand(rows, generator=generator) < 0.1
        ids = torch.cat((ids, (torch.where(any_id, other, near) % 92 + 4)[:, None]), 1)
    return ids


def padded(asked: list[list[int]], pad: int) -> Prompts:
    """Each prompt as often as it has samples."""
    width = max(map(len, asked))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in asked])
    shown = torch.arange(width, 0, -1) <= torch.tensor([len(p) for p in asked])[:, None]
    return Prompts(ids.repeat_interleave(SAMPLES, 0), shown.repeat_interleave(SAMPLES, 0))

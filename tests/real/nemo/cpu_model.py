"""A tiny causal LM, and how Megatron would be called."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(vocabulary: int, seed: int = 0, scale: float = 0.3) -> LlamaForCausalLM:
    """In float64, so that no drawn token and no clipped ratio hangs on a kernel's rounding."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": scale}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, **heads)).double().eval()


class MegatronShape(torch.nn.Module):
    """A Hugging Face model called as Megatron's: logits of [B, S], or of one packed row [1, T]."""

    config = SimpleNamespace(fine_grained_activation_offloading=False)

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, packed_seq_params: Any = None, **_: Any) -> Tensor:
        if packed_seq_params is None:
            return self.model(input_ids).logits
        lengths = packed_seq_params.cu_seqlens_q_padded.diff().tolist()
        rows = pad_sequence(input_ids[0].split(lengths), batch_first=True)
        logits = self.model(rows).logits  # causal: the padding at a row's end changes nothing
        return torch.cat([row[:n] for row, n in zip(logits, lengths, strict=True)])[None]

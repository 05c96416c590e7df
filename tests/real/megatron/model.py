"""A GPTModel of 4 layers, whole or cut, in float32.

Tied embeddings, RMSNorm, SwiGLU, grouped queries with norms of queries and keys.

Weights and gradients of the whole model go by its names (decoder.layers.3.mlp.linear_fc1.weight),
those of a rank by the same names: `cut` takes a rank's part.
"""

from typing import NamedTuple

import substitutes
import torch
from megatron.core import parallel_state as ps
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import random
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

LAYERS, HIDDEN, LENGTH = 4, 64, 16
VOCABULARY, PADDED = 123, 128  # the last rows belong to no token
EMBEDDING = "embedding.word_embeddings.weight"


class Layout(NamedTuple):
    """Sizes of tensor, pipeline, context and data parallelism."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    sp: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    def __str__(self) -> str:
        sizes = [f"{k}{v}" for k, v in self._asdict().items() if k != "sp" and v > 1]
        return "-".join(sizes + ["sp"] * self.sp)


def build(layout: Layout) -> GPTModel:
    """This rank's part, with its process groups."""
    ps.initialize_model_parallel(layout.tp, layout.pp, context_parallel_size=layout.cp)
    random.initialize_rng_tracker(inference_rng_tracker=True)  # draws nothing: there is no dropout
    random.model_parallel_cuda_manual_seed(0)
    return GPTModel(
        _config(layout),
        _spec(layout),
        PADDED,
        LENGTH,
        pre_process=ps.is_pipeline_first_stage(),
        post_process=ps.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
        position_embedding_type="rope",
    )


def _config(layout: Layout) -> TransformerConfig:
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        ffn_hidden_size=96,
        num_attention_heads=4,
        num_query_groups=2,
        normalization="RMSNorm",
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        sequence_parallel=layout.sp,
    )


def _spec(layout: Layout) -> ModuleSpec | TransformerBlockSubmodules:
    """Megatron's own without Transformer Engine, with substitutes where it has none."""
    layer = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    attention = layer.submodules.self_attention.submodules
    if layout.cp > 1:
        attention.core_attention = substitutes.Attention
    if not layout.sp:
        return layer
    attention.q_layernorm = attention.k_layernorm = substitutes.Norm
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = substitutes.Norm
    return TransformerBlockSubmodules([layer] * (LAYERS // layout.pp), substitutes.Norm)


def parameters(model: GPTModel) -> dict[str, torch.nn.Parameter]:
    """This rank's parameters by the names of the whole model."""
    first = model.decoder.layers[0].layer_number - 1
    return {_whole(name, first): p for name, p in model.named_parameters()}


def _whole(name: str, first: int) -> str:
    if name == "output_layer.weight":  # the last pipeline stage's copy of the tied weights
        return EMBEDDING
    head, dot, tail = name.partition("layers.")
    index, _, rest = tail.partition(".")
    return f"{head}{dot}{int(index) + first}.{rest}" if dot else name


def cut(name: str, whole: Tensor) -> Tensor:
    """A tensor-parallel rank's part of a weight, or of its gradient."""
    rank, size = ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size()
    if name.endswith("linear_fc1.weight"):  # gate and up, one below the other
        return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
    if name == EMBEDDING or name.endswith("linear_qkv.weight"):
        return whole.chunk(size)[rank]
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return whole.chunk(size, dim=1)[rank]
    return whole


@torch.no_grad()
def load(model: GPTModel, weights: dict[str, Tensor]) -> None:
    """This rank's part of the whole model's weights."""
    for name, parameter in parameters(model).items():
        parameter.copy_(cut(name, weights[name]))


@torch.no_grad()
def draw(model: GPTModel) -> dict[str, Tensor]:
    """Weights for a whole model: norms around 1, and an embedding that makes some tokens likely."""
    generator = torch.Generator().manual_seed(0)

    def values(name: str, shape: torch.Size) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return 1 + 0.2 * noise if len(shape) == 1 else noise * (0.2 if name == EMBEDDING else 0.1)

    return {name: values(name, p.shape) for name, p in parameters(model).items()}

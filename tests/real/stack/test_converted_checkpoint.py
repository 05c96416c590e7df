"""A checkpoint in the recipes' format becomes a model for vLLM by NeMo-RL's own converter."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nemo_rl.models.automodel.checkpoint import AutomodelCheckpointManager
from nemo_rl.utils.native_checkpoint import convert_dcp_to_hf
from tokenizers import Tokenizer, models
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from nemo_algos.config import find, load

SHAPE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1}
RECIPE, KEY = "recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml", "model_save_format"
FORMAT: Any = {KEY: load(find(RECIPE))["checkpointing"][KEY]}


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """Of one process."""
    group = f"file://{tmp_path}/group"
    torch.distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    torch.distributed.destroy_process_group()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """What the converter reads of the model that a run starts from."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(32)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "base")
    Qwen2Config(**SHAPE, architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_the_recipes_format_is_converted(mesh: DeviceMesh, base: Path) -> None:
    model, weights = Qwen2ForCausalLM(Qwen2Config(**SHAPE)), base.parent / "weights"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fully_shard(model, mesh=mesh["dp"])
    manager = AutomodelCheckpointManager(dp_mesh=mesh["dp"], tp_mesh=mesh["tp"], moe_mesh=None)
    manager.init_checkpointer(FORMAT)
    manager.save_checkpoint(model, str(weights), checkpointing_cfg=FORMAT)
    convert_dcp_to_hf(str(weights), str(base.parent / "hf"), str(base), str(base))
    after = AutoModelForCausalLM.from_pretrained(base.parent / "hf").state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())

"""Functions that a test runs in NeMo-RL's policy workers; in all of them at once."""

import importlib
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def restore(worker: Any) -> None:
    """The weights that it began with: the first call keeps them."""
    state = {k: v for k, v in worker.model.state_dict().items() if isinstance(v, Tensor)}
    own = {k: v.to_local() if isinstance(v, DTensor) else v for k, v in state.items()}
    if not hasattr(worker, "start"):
        worker.start = {name: value.clone() for name, value in own.items()}
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(worker.start[name])
    if hasattr(worker, "megatron_bridge"):
        worker.optimizer.reload_model_params()  # its float32 copies, beside bf16 weights


def weights(worker: Any) -> dict[str, Tensor]:
    """What a refit sends, whole, by Hugging Face's names."""
    if hasattr(worker, "megatron_bridge"):
        worker.prepare_refit_info()
        named = worker._iter_params_with_optional_kv_scales()
    else:
        from nemo_rl.models.policy.workers import dtensor_policy_worker_v2 as v2

        named = v2.dtensor_params_generator(worker.model, torch.float32)
    return {name: value.detach().clone() for name, value in named}


def adapters(worker: Any) -> dict[str, Tensor]:
    """LoRA's weights, whole, by peft's names."""
    if hasattr(worker, "megatron_bridge"):
        named = worker.megatron_bridge.export_adapter_weights([worker.model])
    else:
        state = {k: v for k, v in worker.model.state_dict().items() if ".lora_" in k}
        named = ((k, v.full_tensor() if isinstance(v, DTensor) else v) for k, v in state.items())
    return {name: value.detach().clone() for name, value in named}


def only_adapter(module: str) -> Callable[[Any], None]:
    """LoRA's second factor is 0 in all modules but this one."""

    def fill(worker: Any) -> None:
        with torch.no_grad():
            for name, value in worker.model.state_dict().items():  # which FSDP shards again
                if ".lora_B." in name:
                    own = value.to_local() if isinstance(value, DTensor) else value
                    scale = 0.1 if name.partition(".lora_B.")[0] == module else 0.0
                    own.copy_(torch.linspace(-scale, scale, own.numel()).view_as(own))

    return fill


def recordings(worker: Any) -> int:
    """How many forwards have recorded entropies since the first call."""
    backend = "megatron" if hasattr(worker, "megatron_bridge") else "dtensor"
    module = importlib.import_module(f"nemo_algos.engines.nemo.{backend}_worker")
    if not isinstance(module.recording, Mock):
        module.recording = Mock(wraps=module.recording)
    return module.recording.call_count

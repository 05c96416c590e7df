"""Functions that a test runs in NeMo-RL's policy workers; in all of them at once."""

from typing import Any

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

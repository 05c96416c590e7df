"""verl on a CPU: a platform, which verl 0.9 lets others register, for its own FSDP engine.

VERL_USE_EXTERNAL_MODULES=verl_cpu VERL_PLATFORM=cpu, and VERL_ENGINE_DEVICE=cuda, by which verl
chooses the engine.
"""

# pyright: reportMissingImports=false

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.utils import import_utils


def nothing(*_: Any, **__: Any) -> None:
    """What only a device has to do."""


def no_bytes(*_: Any, **__: Any) -> int:
    return 0


DEVICE = SimpleNamespace(  # as far as verl asks it
    memory_allocated=no_bytes,
    memory_reserved=no_bytes,
    max_memory_allocated=no_bytes,
    max_memory_reserved=no_bytes,
    mem_get_info=lambda *_: (0, 0),
    empty_cache=nothing,
    synchronize=nothing,
    is_available=lambda: True,
    get_device_name=lambda *_: "CPU",
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register("cpu")
class PlatformCPU(PlatformBase):
    """Names and numbers of a host without an accelerator; collectives by gloo."""

    device_name = vendor_name = "cpu"
    device_module = DEVICE
    synchronize = set_device = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    def is_available(self, use_smi_check: bool = False) -> bool:
        return True

    is_platform_available = is_available

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"  # of which verl counts one to a rank: Ray takes any number's word

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def init_process_group(*given: Any, backend: str = "gloo", **named: Any) -> None:
    """torch's, for verl's "cpu:gloo,cpu:gloo", which it refuses."""
    torch_init(*given, backend="gloo" if backend.startswith("cpu:gloo,cpu") else backend, **named)


torch_init, dist.init_process_group = dist.init_process_group, init_process_group
import_utils.is_trl_available = lambda: False  # verl 0.9.1 imports a name of TRL's that 1.0 dropped
torch.Tensor.pin_memory = lambda self, *_: self  # there is no device to copy to

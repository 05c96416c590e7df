"""The two ways of weights into the engine: what CUDA and NCCL do in them, and nothing else."""

import os
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

from nemo_cpu import replace, shim
from nemo_cpu.device import Stream

BACKEND = "nemo_rl/models/generation/vllm/vllm_backend.py"
BASE = "nemo_rl/models/policy/workers/base_policy_worker.py"
POLICY = "nemo_rl/models/policy/utils.py"
PACKED = "nemo_rl/utils/packed_tensor.py"
GROUP = "nemo_rl/distributed/stateless_process_group.py"


@shim("nemo_rl.utils.nvml", (BACKEND, "return get_device_uuid(self.device.index)"))
def device_uuid(module: Any) -> None:
    """NVML's name of a device, which names the refit's socket: this run's own, by Ray's number.

    An asynchronous engine's core is no actor of Ray's, but has the number in its environment.
    """
    import ray

    def number(index: int) -> int:
        if ray.is_initialized() and (own := ray.get_gpu_ids()):
            return int(own[0])
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return int(visible.split(",")[index]) if visible else index

    def get_device_uuid(index: int | None) -> str:
        return f"CPU-{os.environ['NEMO_CPU_SOCKET']}-{number(index or 0)}"

    replace(module, "get_device_uuid", get_device_uuid)


@shim("nemo_rl.utils.nvml", (BASE, "return get_free_memory_bytes(device_idx)"))
def free_memory(module: Any) -> None:
    """NVML's number, three tenths of which are the refit's buffer."""
    replace(module, "get_free_memory_bytes", lambda index: float(64 << 20))


@shim(
    "nemo_rl.models.policy.utils",
    (POLICY, "cuda_ipc_handle = get_handle_from_tensor(buffer)"),
    (BACKEND, "buffer = rebuild_cuda_tensor_from_ipc("),
)
def ipc_handle(module: Any) -> None:
    """A handle of CUDA memory: the buffer's bytes travel in its place."""
    import torch

    def rebuilt(handle: tuple[bytes], device: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(handle[0]), dtype=torch.uint8)

    replace(module, "get_handle_from_tensor", lambda tensor: (tensor.numpy().tobytes(),))
    replace(module, "rebuild_cuda_tensor_from_ipc", rebuilt)


def _nccl() -> None:
    """nccl4py's names, with gloo behind them: a communicator's id is the address of its store."""
    from nemo_cpu import gloo

    for name in ("nccl", "nccl.core", "nccl.core.communicator", "nccl.core.utils"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules["nccl.core"].SUM = None  # type: ignore[attr-defined]
    sys.modules["nccl.core.communicator"].Communicator = gloo.Communicator  # type: ignore[attr-defined]
    for name in ("UniqueId", "get_unique_id"):
        setattr(sys.modules["nccl.core.utils"], name, getattr(gloo, name))


@shim(
    "nemo_rl.distributed.stateless_process_group",
    (GROUP, "from nccl.core.communicator import Communicator"),
    before=_nccl,
)
def nccl4py(module: Any) -> None:
    """nccl4py is a GPU's: its communicator is one of gloo."""


@shim("torch", (GROUP, "stream=int(stream.cuda_stream)"), (GROUP, "with torch.cuda.device(device)"))
def stream_number(torch: Any) -> None:
    """NCCL is given a device and the number of a stream."""
    replace(Stream, "cuda_stream", 0)
    replace(torch.cuda, "device", lambda *_: nullcontext())


@shim(
    "vllm.v1.worker.cpu.shm",
    ("vllm/v1/worker/cpu/shm.py", "torch.cuda.current_stream = lambda"),
    (BACKEND, "torch.cuda.current_stream().synchronize()"),
)
def vllm_streams(module: Any) -> None:
    """vLLM puts a stream of its own in CUDA's place, without what NeMo-RL's receiver calls."""
    replace(module.torch.cuda, "Stream", Stream)
    replace(module.torch.cuda, "current_stream", lambda *_: Stream())


@shim(
    "torch",
    (PACKED, "props = torch.cuda.get_device_properties(device)"),
    ("nemo_rl/models/generation/vllm/vllm_worker.py", "torch.cuda.get_device_capability()[0] >= 8"),
)
def properties(torch: Any) -> None:
    """The packed buffers are 2 % of the GPU's memory; prefixes are cached from an A100 on."""
    here = SimpleNamespace(total_memory=64 << 20, major=8, minor=0)
    replace(torch.cuda, "get_device_properties", lambda *_: here)

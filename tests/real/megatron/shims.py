"""CUDA's names meaning the CPU, for megatron-core 0.19.2 in a rank that does nothing else.

megatron-core asks for the current device by name, whatever the backend of its process groups. Only
ranks (ranks.py) install this: it is never undone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Stream:
    """Work on a CPU has finished when the call returns."""

    def wait_stream(self, _: Any) -> None: ...


class OnCPU(TorchFunctionMode):
    """Torch's functions with CUDA's words meaning the CPU.

    device="cuda" and pinned memory written out in a call, and the names of types, by which
    megatron's optimizers know CUDA's tensors.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = {k: v for k, v in (kwargs or {}).items() if k != "pin_memory"}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        out = func(*args, **kwargs)
        named = func is torch.Tensor.type and isinstance(out, str)
        return out.replace("torch.", "torch.cuda.") if named else out


def install() -> None:
    """Of this process, until it ends."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]
    torch.cuda.current_stream = lambda *_: Stream()  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    OnCPU().__enter__()

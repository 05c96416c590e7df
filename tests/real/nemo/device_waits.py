"""Counts what makes a program wait for its device, on a CPU.

Reads of a tensor's value, and shapes that depend on one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "bincount"}


class Waits(TorchDispatchMode):
    """Counts, within: what a device has to be waited for.

    Reads of a value (.item(), bool(), float() and the like), boolean indexing, repeats without a
    size, and copies to the host that are waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        sized = kwargs.get("output_size") is not None
        boolean = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or boolean or (name == "repeat_interleave" and not sized):
            self.counts[name] += 1
        return func(*args, **kwargs)


class HostReads(TorchFunctionMode):
    """Within, `counts`: reads that no dispatched operation shows on a CPU."""

    METHODS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__)

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.METHODS:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))

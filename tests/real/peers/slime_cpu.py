"""What slime's trainer needs of a machine with GPUs, for a CPU: each stand-in by its name.

Absent: programs whose import alone is needed here. `megatron.training` is not in NVIDIA's wheel of
megatron-core; sglang and torch_memory_saver are for CUDA. CUDA's names:
tests/real/megatron/shims.py.
"""

# pyright: reportMissingImports=false

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any
from unittest.mock import MagicMock


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules any name of which can be imported, and none works."""

    NAMES = ("megatron.training", "sglang", "sglang_router", "torch_memory_saver")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.startswith(self.NAMES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__getattr__ = self.attribute

    @staticmethod
    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


sys.meta_path.append(Absent())

"""The shared mathematics, in pure torch.

A submodule is loaded on first use: a method file reads `core.groups.advantages(...)` inside its
functions, so that the methods and their parameters (and with them every error in a config) are
known before torch is imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_algos.core import (
        correction,
        dual,
        groups,
        metrics,
        mismatch,
        power_mean,
        surrogate,
        tokens,
    )

    __all__ = [
        "correction", "dual", "groups", "metrics", "mismatch", "power_mean", "surrogate", "tokens"
    ]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")

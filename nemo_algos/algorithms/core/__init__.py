"""The shared mathematics, in pure torch.

A submodule is loaded on first use: a method file reads `core.groups.advantages(...)` inside its
functions, so that the methods and their parameters (and with them every error in a config) are
known before torch is imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_algos.algorithms.core import dual as dual
    from nemo_algos.algorithms.core import groups as groups
    from nemo_algos.algorithms.core import importance as importance
    from nemo_algos.algorithms.core import kl as kl
    from nemo_algos.algorithms.core import logprob_gap as logprob_gap
    from nemo_algos.algorithms.core import metrics as metrics
    from nemo_algos.algorithms.core import surrogate as surrogate
    from nemo_algos.algorithms.core import tokens as tokens
    from nemo_algos.algorithms.core import turns as turns


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")

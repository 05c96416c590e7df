"""Policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop; torch loads on use.

The library is the names of `__all__`: docs/own_loop.md and docs/add_a_method.md show them at work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_algos.algorithms.algorithm import Algorithm
    from nemo_algos.algorithms.build import build
    from nemo_algos.algorithms.core.surrogate import Counts
    from nemo_algos.algorithms.loss import LossConfig, batch_loss, policy_loss
    from nemo_algos.algorithms.method import ClipParams, Method, Params
    from nemo_algos.algorithms.methods import METHODS
    from nemo_algos.algorithms.riders.terms import Inputs, LossTerm, TermParams
    from nemo_algos.algorithms.rollouts import Rollouts, prompt_key
    from nemo_algos.algorithms.signals import Signals, Term
    from nemo_algos.config import ConfigError, Finding, validate

__version__ = "0.1.0"
__all__ = [
    "METHODS", "Algorithm", "ClipParams", "ConfigError", "Counts", "Finding", "Inputs",
    "LossConfig", "LossTerm", "Method", "Params", "Rollouts", "Signals", "Term", "TermParams",
    "batch_loss", "build", "policy_loss", "prompt_key", "validate",
]  # fmt: skip
_HOMES = {
    "config": ("ConfigError", "Finding", "validate"),
    "algorithms.core.surrogate": ("Counts",),
    "algorithms.methods": ("METHODS",),
    "algorithms.algorithm": ("Algorithm",),
    "algorithms.build": ("build",),
    "algorithms.loss": ("LossConfig", "batch_loss", "policy_loss"),
    "algorithms.method": ("ClipParams", "Method", "Params"),
    "algorithms.signals": ("Signals", "Term"),
    "algorithms.riders.terms": ("Inputs", "LossTerm", "TermParams"),
    "algorithms.rollouts": ("Rollouts", "prompt_key"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]

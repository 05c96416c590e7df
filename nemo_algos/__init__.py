"""Policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop; torch loads on use.

The library is the names of `__all__`: docs/own_loop.md and docs/add_a_method.md show them at work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_algos.config import ConfigError, Finding, validate
    from nemo_algos.core.surrogate import Counts
    from nemo_algos.methods import METHODS
    from nemo_algos.methods.algorithm import Algorithm
    from nemo_algos.methods.build import build
    from nemo_algos.methods.loss import LossConfig, batch_loss, policy_loss
    from nemo_algos.methods.method import ClipParams, Method, Params
    from nemo_algos.methods.signals import Signals, Term
    from nemo_algos.rollouts import Rollouts

__version__ = "0.1.0"
__all__ = [
    "METHODS", "Algorithm", "ClipParams", "ConfigError", "Counts", "Finding", "LossConfig",
    "Method", "Params", "Rollouts", "Signals", "Term", "batch_loss", "build", "policy_loss",
    "validate",
]  # fmt: skip
_HOMES = {
    "config": ("ConfigError", "Finding", "validate"),
    "core.surrogate": ("Counts",),
    "methods": ("METHODS",),
    "methods.algorithm": ("Algorithm",),
    "methods.build": ("build",),
    "methods.loss": ("LossConfig", "batch_loss", "policy_loss"),
    "methods.method": ("ClipParams", "Method", "Params"),
    "methods.signals": ("Signals", "Term"),
    "rollouts": ("Rollouts",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]

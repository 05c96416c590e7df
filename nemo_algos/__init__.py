"""Policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop; torch loads on use.

The library is the names of `__all__`: docs/adapters.md and docs/add_a_method.md show them at work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_algos.algorithms.algorithm import Algorithm
    from nemo_algos.algorithms.build import build
    from nemo_algos.algorithms.core.surrogate import Counts, sequence_mean
    from nemo_algos.algorithms.extensions.loss_config import LossConfig
    from nemo_algos.algorithms.extensions.old_policy import inert_on_policy, warn_on_policy
    from nemo_algos.algorithms.extensions.sampler import sampler_changes
    from nemo_algos.algorithms.extensions.terms import LossTerm, TermInputs, TermParams
    from nemo_algos.algorithms.kernel import (
        DriverOutput,
        Method,
        Signals,
        group_advantages,
        no_bounds,
        token_log_ratio,
    )
    from nemo_algos.algorithms.loss import batch_loss, policy_loss
    from nemo_algos.algorithms.methods import METHODS
    from nemo_algos.algorithms.ranks import rank_counts, rank_signals, rank_stats
    from nemo_algos.algorithms.record import ClipParams, Params
    from nemo_algos.algorithms.rollouts import Rollouts, prompt_key
    from nemo_algos.findings import ConfigError, Finding, validate

__version__ = "0.1.0"
__all__ = [
    "METHODS", "Algorithm", "ClipParams", "ConfigError", "Counts", "DriverOutput", "Finding",
    "LossConfig", "LossTerm", "Method", "Params", "Rollouts", "Signals", "TermInputs", "TermParams",
    "batch_loss", "build", "group_advantages", "inert_on_policy", "no_bounds", "policy_loss",
    "prompt_key", "rank_counts", "rank_signals", "rank_stats", "sampler_changes", "sequence_mean",
    "token_log_ratio", "validate", "warn_on_policy",
]  # fmt: skip
_HOMES = {
    "findings": ("ConfigError", "Finding", "validate"),
    "algorithms.core.surrogate": ("Counts", "sequence_mean"),
    "algorithms.methods": ("METHODS",),
    "algorithms.algorithm": ("Algorithm",),
    "algorithms.build": ("build",),
    "algorithms.loss": ("batch_loss", "policy_loss"),
    "algorithms.ranks": ("rank_counts", "rank_signals", "rank_stats"),
    "algorithms.record": ("ClipParams", "Params"),
    "algorithms.kernel": (
        *("DriverOutput", "Method", "Signals"),
        *("group_advantages", "no_bounds", "token_log_ratio"),
    ),
    "algorithms.extensions.loss_config": ("LossConfig",),
    "algorithms.extensions.old_policy": ("inert_on_policy", "warn_on_policy"),
    "algorithms.extensions.sampler": ("sampler_changes",),
    "algorithms.extensions.terms": ("LossTerm", "TermInputs", "TermParams"),
    "algorithms.rollouts": ("Rollouts", "prompt_key"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]

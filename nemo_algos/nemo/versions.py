"""What we bind of NeMo-RL, checked when this package is imported: one error that names what
changed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

TESTED = "v0.7.0 and main of 2026-08-22 (7ea279abf)"

# module, attribute, parameters that we pass by name (or override)
BOUND: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("nemo_rl.algorithms.loss", "ClippedPGLossFn", ("cfg",)),
    (
        "nemo_rl.algorithms.loss",
        "ClippedPGLossFn.__call__",
        ("next_token_logprobs", "data", "global_valid_seqs", "global_valid_toks"),
    ),
    ("nemo_rl.algorithms.grpo", "_create_advantage_estimator", ("master_config",)),
    ("nemo_rl.algorithms.grpo", "MasterConfig", ()),
    (
        "nemo_rl.algorithms.grpo",
        "setup",
        ("master_config", "tokenizer", "dataset", "val_dataset", "policy_factory"),
    ),
    ("nemo_rl.algorithms.grpo", "grpo_train", ("policy", "loss_fn", "master_config")),
    ("nemo_rl.algorithms.grpo", "async_grpo_train", ("policy", "loss_fn", "master_config")),
    ("nemo_rl.models.policy.lm_policy", "Policy", ("worker_extension_cls_fqn",)),
    ("nemo_rl.utils.config", "load_config", ()),
)


def check() -> None:
    """Raises ImportError with everything that is missing or has other parameters."""
    problems = [p for module, name, wanted in BOUND for p in _problems(module, name, wanted)]
    if problems:
        raise ImportError(
            f"this NeMo-RL is not one that nemo_algos knows (tested: {TESTED}):\n  "
            + "\n  ".join(problems)
        )


def _problems(module: str, name: str, wanted: tuple[str, ...]) -> list[str]:
    try:
        bound: Any = import_module(module)
        for part in name.split("."):
            bound = getattr(bound, part)
    except (ImportError, AttributeError) as error:
        return [f"{module}.{name}: {error}"]
    if not wanted:
        return []
    parameters = inspect.signature(bound).parameters
    missing = [p for p in wanted if p not in parameters]
    return [f"{module}.{name} has no parameter {', '.join(missing)}"] if missing else []


def get(section: Any, key: str, default: Any = None) -> Any:
    """A config value: sections are dictionaries in one version and pydantic models in another."""
    if isinstance(section, Mapping):
        return section.get(key, default)
    return getattr(section, key, default)


def present(module: str) -> bool:
    """Whether this version has the module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False

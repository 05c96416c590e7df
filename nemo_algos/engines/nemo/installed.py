"""The NeMo-RL of this environment, as what a run is judged by."""

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import nemo_rl
from nemo_rl import package_info
from nemo_rl.algorithms import grpo
from nemo_rl.models.generation.vllm.config import VllmConfig
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
from omegaconf import OmegaConf

from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.release import Release, schema

EXAMPLES = Path(nemo_rl.__path__[0]).parent / "examples" / "configs"
TYPES = {"": grpo.MasterConfig, "policy.generation": VllmConfig}
CONTROLLER = "nemo_rl.algorithms.single_controller_utils.config"  # not in v0.7.0


class Examples(UserDict[str, Any]):
    """NeMo-RL's configs by name below EXAMPLES, each read when it is asked for."""

    def __init__(self) -> None:
        files = sorted(EXAMPLES.rglob("*.yaml"))
        super().__init__({str(file.relative_to(EXAMPLES)): file for file in files})

    def __getitem__(self, name: str) -> dict[str, Any]:
        register_omegaconf_resolvers()
        plain: Any = OmegaConf.to_container(load_config(self.data[name]))
        return plain


def types() -> list[Mapping[str, type]]:
    """Of the configs of all its trainers, by the path of their section."""
    if not versions.present(CONTROLLER):
        return [TYPES]
    return [TYPES, {"": import_module(CONTROLLER).MasterConfig}]


def find_release() -> Release:
    """The NeMo-RL of this environment; rules take any but v0.7 for main, whose API it must have."""
    old = (package_info.MAJOR, package_info.MINOR) == (0, 7)
    return Release("v0.7.0" if old else "main", schema(*types()), Examples(), {})

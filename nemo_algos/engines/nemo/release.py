"""What a NeMo-RL has: its version, the keys of its types, its configs."""

from collections.abc import Iterator, Mapping
from itertools import chain
from types import UnionType
from typing import Any, NamedTuple, NotRequired, Union, get_args, get_origin

from omegaconf import DictConfig

PURPOSES = {  # by the section that no other trainer's config has
    "sft": "supervised fine-tuning",
    "dpo": "DPO",
    "rm": "a reward model",
    "distillation": "distillation",
    "ppo": "PPO",
    "eval": "an evaluation",
}


class Release(NamedTuple):
    """What a run is judged by: a NeMo-RL, shipped with ours (`snapshot.load`) or `installed`.

    version: of VERSIONS; declared: paths of its typed keys; configs: all of its configs by name
    below examples/configs, interpolations as written (shipped: of those that are not for GRPO the
    names of their sections); trees: those that OmegaConf has taken in.
    """

    version: str
    declared: frozenset[str]
    configs: Mapping[str, dict[str, Any]]
    trees: dict[str, DictConfig]

    @property
    def grpo(self) -> dict[str, dict[str, Any]]:
        """The configs that its GRPO trainers take."""
        return {name: config for name, config in self.configs.items() if is_grpo(config)}


def is_grpo(config: Mapping[str, Any]) -> bool:
    """Whether NeMo-RL's GRPO trainers take it: its other trainers have a section of their own."""
    return "grpo" in config


def purpose(config: Mapping[str, Any]) -> str:
    """What a config that is not for GRPO is for."""
    return next((what for section, what in PURPOSES.items() if section in config), "something else")


def declared(types: Mapping[str, type]) -> set[str]:
    """Paths of typed keys; types: by the path of their section, "" for the whole config."""
    return set(chain.from_iterable(_fields(kind, path) for path, kind in types.items()))


def _fields(model: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields of a pydantic model, a TypedDict, or a union of them."""
    if get_origin(model) in (Union, UnionType, NotRequired):
        yield from chain.from_iterable(_fields(part, path) for part in get_args(model))
    annotations = getattr(model, "__annotations__", {})
    fields = {k: v.annotation for k, v in getattr(model, "model_fields", {}).items()} or annotations
    for name, annotation in fields.items():
        inner = f"{path}.{name}".removeprefix(".")
        yield inner
        yield from _fields(annotation, inner)

"""What a NeMo-RL has: its version, its typed keys, its configs."""

from collections.abc import Iterator, Mapping
from itertools import chain
from types import UnionType
from typing import Any, NamedTuple, NotRequired, Union, get_args, get_origin

from omegaconf import DictConfig
from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

# what is kept of a type's JSON schema: what judges a value
JUDGES = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "type")

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

    version: of VERSIONS; schema: the JSON schema of each typed key, by path; configs: all of its
    configs by name below examples/configs, interpolations as written (shipped: of those that are
    not for GRPO the names of their sections); trees: those that OmegaConf has taken in.
    """

    version: str
    schema: Mapping[str, Mapping[str, Any]]
    configs: Mapping[str, dict[str, Any]]
    trees: dict[str, DictConfig]

    @property
    def declared(self) -> frozenset[str]:
        """The paths of its typed keys."""
        return frozenset(self.schema)

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


def schema(*several: Mapping[str, type]) -> dict[str, dict[str, Any]]:
    """The JSON schema of every typed key, by its path: of several types any that one of them has.

    several: types by the path of their section, "" for the whole config. A section is an `object`:
    its keys have paths of their own. A type without a JSON schema judges nothing: {}.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    pairs = chain.from_iterable(types.items() for types in several)
    for path, annotation in chain.from_iterable(_fields(kind, path) for path, kind in pairs):
        one = _of_type(annotation)
        known = found.setdefault(path, [])
        if one not in known:
            known.append(one)
    return {k: {"anyOf": v} if len(v) > 1 else v[0] for k, v in sorted(found.items())}


def _fields(model: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and type of the fields of a pydantic model, a TypedDict, or a union of them."""
    if get_origin(model) in (Union, UnionType, NotRequired):
        yield from chain.from_iterable(_fields(part, path) for part in get_args(model))
    fields = getattr(model, "model_fields", {})
    annotations = getattr(model, "__annotations__", {})
    for name in fields or annotations:
        inner = f"{path}.{name}".removeprefix(".")
        bare = fields[name].annotation if fields else annotations[name]
        yield inner, fields[name].rebuild_annotation() if fields else bare
        yield from _fields(bare, inner)


def _of_type(annotation: Any) -> dict[str, Any]:
    while get_origin(annotation) is NotRequired:
        annotation = get_args(annotation)[0]
    try:
        made = TypeAdapter(annotation).json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError):
        return {}
    return _cut(made, made.get("$defs", {}))


def _cut(found: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """What of a JSON schema judges a value, without the keys of a section."""
    if "$ref" in found:
        return _cut(named[found["$ref"].rpartition("/")[2]], named)
    kept: dict[str, Any] = {key: found[key] for key in JUDGES if key in found}
    for several in ("anyOf", "oneOf"):
        if several in found:
            kept["anyOf"] = [_cut(one, named) for one in found[several]]
    if isinstance(found.get("items"), Mapping):
        kept["items"] = _cut(found["items"], named)
    return kept

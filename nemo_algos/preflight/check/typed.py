"""Whether a value is what its JSON schema says; the schemas themselves are a `Release`'s."""

import json
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from nemo_algos.config import Finding

Schema = Mapping[str, Any]
LARGEST = 1e15  # of any number
NUMBERS = {"integer": "a whole number", "number": "a number"}
KINDS: dict[str, tuple[type, str]] = {
    "array": (list, "a list"),
    "boolean": (bool, "true or false"),
    "null": (NoneType, "null"),
    "object": (dict, "a section of key: value pairs"),
    "string": (str, "a text"),
}
# JSON schema's bounds: how a number is compared, and how that is said
BOUNDS = {
    "minimum": (lambda value, bound: value >= bound, "from {:g}"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "above {:g}"),
    "maximum": (lambda value, bound: value <= bound, "to {:g}"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "below {:g}"),
}


def misfits(
    plain: Mapping[Any, Any], schemas: Mapping[str, Schema], above: str = ""
) -> Iterator[Finding]:
    """The values that are not of their key's type or range; schemas: by path.

    A section that is not enabled is not looked into where NeMo-RL has another type for it.
    """
    for key, value in plain.items():
        path = f"{above}{key}"
        schema = schemas.get(path, {})
        if not fits(schema, value):
            yield Finding(path, f"must be {expected(schema)}, got {json_like(value)}")
            continue
        for section in value if isinstance(value, list) else [value]:
            enabled = schemas.get(f"{path}.enabled")
            if isinstance(section, Mapping) and not _is_off(section, enabled):
                yield from misfits(section, _within_section(schemas, path, section), f"{path}.")


def _is_off(section: Mapping[Any, Any], enabled: Schema | None) -> bool:
    """Whether a section is not enabled, and a type without the other keys is for that."""
    always = enabled is not None and enabled.get("type") == "boolean" and "const" not in enabled
    return section.get("enabled") is False and not always


def _within_section(
    schemas: Mapping[str, Schema], path: str, section: Mapping[Any, Any]
) -> Mapping[str, Schema]:
    """The schemas of a section's keys: of several kinds of section those of the one it chooses.

    Rules judge a choice that there is not, as a sampler's unknown `name`.
    """
    schema = schemas.get(path, {})
    if "variants" not in schema:
        return schemas
    chosen = schema["variants"].get(section.get(schema["chooser"]), {})
    return {f"{path}.{key}": kind for key, kind in chosen.items() if key != schema["chooser"]}


def fits(schema: Schema, value: Any) -> bool:
    """Whether a value is of the schema; unlike in NeMo-RL, a text is no number and no flag."""
    if "anyOf" in schema:
        return any(fits(one, value) for one in schema["anyOf"])
    if choices := _choices(schema):
        return any(type(value) is type(one) and value == one for one in choices)
    kind = schema.get("type")
    if kind in NUMBERS:
        whole = kind == "number" or (is_number(value) and value % 1 == 0)
        return is_number(value) and whole and _within(schema, value)
    if kind == "array" and isinstance(value, list):
        return all(fits(schema.get("items", {}), one) for one in value)
    return kind not in KINDS or isinstance(value, KINDS[kind][0])


def expected(schema: Schema) -> str:
    """What a value must be: `a whole number from 1 or null`."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(expected(one) for one in schema["anyOf"]))
    if choices := _choices(schema):
        return " or ".join(json_like(one) for one in choices)
    kind = schema["type"]
    if kind not in NUMBERS:
        return KINDS[kind][1]
    bounds = [said.format(schema[name]) for name, (_, said) in BOUNDS.items() if name in schema]
    return " ".join([NUMBERS[kind], *(bounds or [f"below {LARGEST:g}"])])


def is_number(value: Any) -> bool:
    """Neither a flag, nor beyond all that occurs, nor infinite, nor no number."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and -LARGEST < value < LARGEST


def json_like(value: Any) -> str:
    """A value as one would write it."""
    return json.dumps(value) if isinstance(value, (bool, NoneType)) else repr(value)


def _choices(schema: Schema) -> list[Any]:
    return schema.get("enum") or ([schema["const"]] if "const" in schema else [])


def _within(schema: Schema, value: float) -> bool:
    return all(holds(value, schema[name]) for name, (holds, _) in BOUNDS.items() if name in schema)

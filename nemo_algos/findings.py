"""What is wrong in a config, at which key and in which words; what pydantic finds, in ours."""

import difflib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from nemo_algos.secrets import as_written

Schema = TypeVar("Schema", bound=BaseModel)


class Finding(NamedTuple):
    """What is found in a config, at the path of a key (`policy.optimizer.lr`, or "" for the file).

    message: what to change. severity: error (fails, or means something else) | warning (probably
    not meant) | note.
    """

    path: str
    message: str
    severity: str = "error"

    def __str__(self) -> str:
        return as_written(f"{self.path}: {self.message}" if self.path else self.message)


class UnknownKey(Finding):
    """A key that the schema does not have."""


class Section(BaseModel):
    """A section of a config: unknown keys, other types and non-finite numbers are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, strict=True, use_attribute_docstrings=True
    )


class ConfigError(ValueError):
    """All errors of a configuration at once, a line each; `findings` may have warnings too."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = list(findings)
        super().__init__("\n".join(str(f) for f in findings if f.severity == "error"))

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[list[Finding]]]:
        return type(self), (self.findings,)  # another process's error is made again here


def refuse_first(*cases: tuple[object, str]) -> None:
    """Raise ValueError with the text of the first case whose condition holds."""
    for wrong, text in cases:
        if wrong:
            raise ValueError(text)


def first_line(error: Exception) -> str:
    """The first line of its message, else its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def at(plain: Mapping[str, Any], path: str) -> Any:
    """The value of a key's path in plain dictionaries, None where it is not there."""
    value: Any = plain
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def sections_of(value: Any) -> list[Mapping[Any, Any]]:
    """The sections that a key has: one, or those of a list; none where it has another value."""
    several = value if isinstance(value, list) else [value]
    return [one for one in several if isinstance(one, Mapping)]


def set_at(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set the value of a key's path in place, with the sections above it."""
    *parents, key = path.split(".")
    for name in parents:
        plain = plain.setdefault(name, {})
    plain[key] = value


def did_you_mean(name: str, valid: Sequence[str], cutoff: float = 0.6) -> str:
    """' (did you mean x?)', or the valid names where none is near and they are few, or ''.

    cutoff: the share of both names' letters that must agree.
    """
    alike = [one for one in valid if one.lower() == name.lower()]
    near = alike or difflib.get_close_matches(name, valid, n=1, cutoff=cutoff)
    if near:
        return f" (did you mean {near[0]}?)"
    return f" (valid: {', '.join(valid)})" if 0 < len(valid) <= 50 else ""


def validate(schema: type[Schema], data: dict[str, Any], root: str = "") -> Schema:
    """data as a `schema`. Raises ConfigError with every finding, paths below `root`."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, schema, root)) from None


def as_names(path: str) -> str:
    """The path of an unknown key, to be printed: `...` for what is no name: it may be a secret."""
    return ".".join(key if re.fullmatch(r"[\w-]*", key) else "..." for key in path.split("."))


def problems_of(error: ValidationError, schema: type[BaseModel], root: str = "") -> list[Finding]:
    """pydantic's errors as findings, unknown keys with the nearest valid name."""
    return [_finding(dict(e), schema, root) for e in error.errors()]


def _finding(error: dict[str, Any], schema: type[BaseModel], root: str) -> Finding:
    loc = [str(part) for part in error["loc"]]
    path = ".".join([root, *loc] if root else loc)
    if error["type"] == "extra_forbidden":
        near = did_you_mean(loc[-1], _fields(schema, loc[:-1]))
        elsewhere = [known for known, _ in fields_of(schema) if known.split(".")[-1] == loc[-1]]
        if "did you mean" not in near and len(elsewhere) == 1:
            near = f" (did you mean {elsewhere[0]}?)"
        return UnknownKey(as_names(path), f"unknown key{near}")
    if error["type"] == "value_error":
        return Finding(path, str(error["ctx"]["error"]))
    if error["type"] == "missing" or error["input"] is None:
        absent = "missing" if error["type"] == "missing" else "null"
        return Finding(path, f"it is {absent}. Set it{_to_what(schema, loc)}.")
    message = error["msg"][0].lower() + error["msg"][1:]
    if error["type"] == "model_type":  # pydantic names our class
        message = "must be a section of key: value pairs"
    return Finding(path, f"{message}, got {error['input']!r}")


def _to_what(schema: Any, loc: list[str]) -> str:
    """`: ` and the first sentence of the key's docstring, where its section is a plain one."""
    for name in loc[:-1]:
        schema = getattr(schema, "model_fields", {}).get(name)
        schema = schema and schema.annotation
    field = getattr(schema, "model_fields", {}).get(loc[-1])
    said = " ".join(((field and field.description) or "").split()).split(". ")[0].rstrip(".")
    first = said.partition(" ")[0]
    start = said[:1] if first != first.capitalize() else said[:1].lower()  # NeMo-RL's, AMP
    return f": {start}{said[1:]}" if said else ""


def fields_of(schema: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key below a section, by its path; `*` stands for a name that the user chooses."""
    for name, field in schema.model_fields.items():
        path = f"{above}{name}"
        yield path, field
        chosen = "*." if "dict[" in str(field.annotation) else ""
        for section in sections_in(field.annotation):
            yield from fields_of(section, f"{path}.{chosen}")


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The schemas that a key's annotation names."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for one in get_args(annotation) for section in sections_in(one)]


def _fields(annotation: Any, loc: Sequence[str]) -> list[str]:
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            fields = _fields(member, loc)
            if fields:
                return fields
        return []
    if get_origin(annotation) in (dict, list):
        return _fields(get_args(annotation)[-1], loc[1:])
    fields = getattr(annotation, "model_fields", {})
    if loc:
        return _fields(fields[loc[0]].annotation, loc[1:]) if loc[0] in fields else []
    return sorted(fields)

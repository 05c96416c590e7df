"""Strict configuration, without torch: inheritance, overrides, every error at once.

A config is YAML; `defaults: other.yaml`, or a list, inherits: a file beside it, or a shipped one.
Overrides are NeMo-RL's `a.b=c`. A schema is a pydantic model that forbids unknown keys.
"""

import difflib
import functools
import json
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from types import UnionType
from typing import Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError

SECRET = 8  # characters of what an environment variable holds, from which on it is not shown
_FROM_ENVIRONMENT: dict[str, str] = {}  # a value, as shown -> the ${oc.env:NAME} that gave it
# what a config's interpolations may come to: a few lines of them can take all memory
EVALUATIONS, CHARACTERS = 10_000, 4_000_000
TOO_MUCH = (
    f"the interpolations of this config come to more than {EVALUATIONS:,} values or "
    f"{CHARACTERS:,} characters. Remove some."
)


class Spent:
    """What the interpolations of a config have cost."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.characters = 0

    def add(self, found: Any) -> Any:
        """Count what an interpolation gave, and return it.

        Raises InterpolationResolutionError beyond the limits.
        """
        plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        self.evaluations += 1
        self.characters += len(str(plain))
        if self.evaluations > EVALUATIONS or self.characters > CHARACTERS:
            raise InterpolationResolutionError(TOO_MUCH)
        return found


_SPENT: ContextVar[Spent | None] = ContextVar("spent", default=None)


_LIMITED: ContextVar[bool] = ContextVar("limited", default=False)
_COUNTING = 0  # how many `limited` are open in this process
_LOCK = Lock()
_evaluate = Container._evaluate_custom_resolver
_look_up = Container._resolve_node_interpolation


@contextmanager
def limited() -> Iterator[None]:
    """Within, what an interpolation comes to has a limit: in a command, and where we read a config.

    OmegaConf has no hook for it, and any access evaluates interpolations, `key in config` too. So
    its own two methods count, but only within, and not for a host's threads beside.
    """
    token = _LIMITED.set(True)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _LIMITED.reset(token)


def _count(more: int) -> None:
    global _COUNTING
    with _LOCK:
        _COUNTING += more
        Container._evaluate_custom_resolver = _evaluate_resolver if _COUNTING else _evaluate
        Container._resolve_node_interpolation = _resolve_node if _COUNTING else _look_up


@contextmanager
def bounded() -> Iterator[Spent]:
    """Within, all interpolations share one limit; else each has its own."""
    if (spent := _SPENT.get()) is not None:
        yield spent
        return
    spent = Spent()
    token = _SPENT.set(spent)
    try:
        with limited():
            yield spent
    finally:
        _SPENT.reset(token)


def _evaluate_resolver(
    self: Container,
    key: Any,
    node: Any,
    inter_type: str,
    inter_args: tuple[Any, ...],
    inter_args_str: tuple[str, ...],
) -> Any:
    """Evaluate a resolver within the limits, and remember what ${oc.env:NAME} gave."""
    if not _LIMITED.get():
        return _evaluate(self, key, node, inter_type, inter_args, inter_args_str)
    with bounded() as spent:
        found = _evaluate(self, key, node, inter_type, inter_args, inter_args_str)
        if inter_type == "oc.env":
            _remember(inter_args, found)
        return spent.add(found)


def _resolve_node(self: Container, *args: Any, **keywords: Any) -> Any:
    """Evaluate a reference to another key within the limits."""
    if not _LIMITED.get():
        return _look_up(self, *args, **keywords)
    with bounded() as spent:
        return spent.add(_look_up(self, *args, **keywords))


def _remember(arguments: Sequence[Any], value: Any) -> None:
    """Keep what ${oc.env:NAME} gave in every form in which an error or a file may show it."""
    if not isinstance(value, str):
        return
    written = f"${{oc.env:{','.join(map(str, arguments))}}}"
    for text in (value, " ".join(value.split()), *value.splitlines()):
        for shown in (text, repr(text)[1:-1], json.dumps(text)[1:-1]):
            if len(shown) >= SECRET:
                _FROM_ENVIRONMENT[shown] = written


def _nodes(node: Any, known: dict[int, int]) -> int:
    """How many values a node comes to, a section counted wherever an interpolation puts it."""
    found = node._maybe_dereference_node()
    if not isinstance(found, Container) or found._is_none() or found._is_missing():
        return 1
    if id(found) not in known:
        keys = range(len(found)) if isinstance(found, ListConfig) else found
        known[id(found)] = 1
        known[id(found)] += sum(_nodes(found._get_node(key), known) for key in keys)
    return known[id(found)]


def as_written(value: Any) -> Any:
    """`value` with ${oc.env:NAME} again where that gave a text: it may be a secret.

    To be printed, stored or sent; below SECRET characters a text stays.
    """
    if isinstance(value, dict):
        return {k: as_written(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_written(v) for v in value]
    if isinstance(value, str):
        for secret in sorted(_FROM_ENVIRONMENT, key=len, reverse=True):
            value = value.replace(secret, _FROM_ENVIRONMENT[secret])
    return value


UNSAFE = re.compile(r"[^\w.+=@-]+", re.ASCII)  # a colon parts the halves of a mount


def method_name(block: Any) -> str:
    """etr, mine-MINE for mine:MINE, erpo+etr for a combination; block: of a config's `method`."""
    if isinstance(block, Mapping):
        parts = [block.get(key) for key in ("advantages", "name", "bounds")]
        return "+".join(dict.fromkeys(method_name(part) for part in parts if part)) or "run"
    return UNSAFE.sub("-", str(block)).strip("-.") or "run"


def run_name(config: str, before: Any, after: Any) -> str:
    """The config's, unless its `method` (before) names others with the overrides (after)."""
    stem = UNSAFE.sub("-", config.rpartition("/")[2].removesuffix(".yaml")).strip("-.")
    name = method_name(after)
    return stem if stem and name == method_name(before) else name


Schema = TypeVar("Schema", bound=BaseModel)


class OverrideLoader(yaml.SafeLoader):
    """Reads the value of an override as Hydra does, and so NeMo-RL: `010`, `yes`, `3:45` are texts.

    In a file they are YAML 1.1's numbers and truth values, in NeMo-RL too.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # pyright: ignore


_WHOLE = r"(?:0|[1-9](?:_?\d)*)"
_DIGITS = r"\d(?:_?\d)*"
_POINT = rf"(?:{_WHOLE}?\.{_DIGITS}|{_WHOLE}\.)"
for _tag, _shape in {
    "null": "(?i:null)?",  # or nothing, within {}
    "bool": "(?i:true|false)",
    "int": rf"[-+]?{_WHOLE}",
    "float": rf"[-+]?(?:{_POINT}|(?:{_POINT}|{_WHOLE})[eE][-+]?{_DIGITS}|(?i:inf|nan))",
}.items():
    OverrideLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_shape})$"), None
    )

TAB = re.compile(r"^ *\t", re.MULTILINE)
DEEPEST = 100  # levels of a config
UNSET = re.compile(r"Environment variable '(\w+)' not found")  # omegaconf's, of ${oc.env:NAME}
HERE = Path(__file__).resolve().parent
# modules that some commands need, and the extra of pyproject.toml that brings them
EXTRAS: dict[str, str] = {
    **dict.fromkeys(("transformers", "math_verify", "tensorboard", "matplotlib"), "engine"),
    **dict.fromkeys(("scipy", "sklearn", "rapidfuzz", "httpx", "openai"), "lab"),
}


def repository_folder(folder: str) -> Path:
    """A folder of the repository, which a wheel has inside the package."""
    inside = HERE / "_repository" / folder
    return inside if inside.exists() else HERE.parent / folder


SHIPPED = repository_folder("examples/configs")
with warnings.catch_warnings(action="ignore"):  # ${shipped:FILE} lies beside the shipped configs
    OmegaConf.register_new_resolver("shipped", lambda name: str(SHIPPED / name), replace=True)
    OmegaConf.register_new_resolver("method_name", method_name, replace=True)


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


def load(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain config of a YAML file: parents, then the file, then overrides `a.b=c`; resolved.

    Raises ConfigError for a missing or broken file, a cycle of `defaults`, or a malformed override.
    """
    return resolve(apply_overrides(read(path), overrides))


def find(name: str) -> Path:
    """A config by path, else by name (`etr.yaml`, `recipes/x.yaml`) among the shipped ones."""
    return Path(name) if Path(name).exists() else SHIPPED / name


def names() -> list[str]:
    """The shipped configs, those of training first."""
    paths = [p.relative_to(SHIPPED) for p in SHIPPED.rglob("*.yaml")]
    return [p.as_posix() for p in sorted(paths, key=lambda p: (len(p.parts), p))]


def read(path: Path) -> DictConfig:
    """A YAML file over its parents, interpolations as written. Raises ConfigError."""
    whole = path.resolve()
    own = whole.is_relative_to(SHIPPED)
    return pickle.loads(_pickled(whole)) if own else _with_parents(whole, ())


def apply_overrides(merged: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The config with the overrides `a.b=c` set in place. Raises ConfigError with all that fail."""
    pairs = zip_longest(overrides, overrides[1:], fillvalue="")
    with bounded():
        findings = [p for o, behind in pairs if (p := _override(merged, o, behind))]
    if findings:
        raise ConfigError(findings)
    return merged


def resolve(merged: DictConfig) -> dict[str, Any]:
    """Plain dictionaries, interpolations resolved. Raises ConfigError."""
    with evaluating():
        if _nodes(merged, {}) > EVALUATIONS:
            raise ConfigError([Finding("", TOO_MUCH)])
        plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


@contextmanager
def evaluating() -> Iterator[None]:
    """Within, interpolations are `bounded`, and what is wrong with one is a ConfigError.

    Where OmegaConf merges a section over an interpolation, it evaluates that, too.
    """
    try:
        with bounded():
            yield
    except OmegaConfBaseException as error:
        raise ConfigError([Finding(error.full_key or "", _interpolation_error(error))]) from None
    except RecursionError:
        raise ConfigError(
            [Finding("", "its interpolations are a chain too long to follow")]
        ) from None


def select(written: DictConfig, path: str) -> Any:
    """The value of one key of a config whose interpolations stand as written, None without it.

    Raises ConfigError.
    """
    with evaluating():
        return OmegaConf.select(written, path)


def _interpolation_error(error: OmegaConfBaseException) -> str:
    unset = UNSET.search(str(error))
    if unset is None:
        return first_line(error)
    return (
        f"it reads the environment variable {unset[1]}, which is not set. Export {unset[1]}=..., "
        "or set this key to a value."
    )


def at(plain: Mapping[str, Any], path: str) -> Any:
    """The value of a key's path in plain dictionaries, None where it is not there."""
    value: Any = plain
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def set_at(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set the value of a key's path in place, with the sections above it."""
    *parents, key = path.split(".")
    for name in parents:
        plain = plain.setdefault(name, {})
    plain[key] = value


def _override(config: DictConfig, written: str, behind: str = "") -> Finding | None:
    """Merge one `key.path=value` into the config; what is wrong with it, or None.

    behind: the next word, which may be its value.
    """
    key, equals, value = written.lstrip("+").partition("=")
    if written.startswith("~"):
        return Finding(
            "",
            f"override {written!r}: `~` deletes a key in Hydra, and is not supported here. Remove "
            "the key from the file, or set it to a value (`key=null` where null turns it off).",
        )
    if written != written.encode(errors="replace").decode():
        return Finding("", f"override {written!a}: it is not valid UTF-8. Write it in UTF-8.")
    if not equals or not all(key.split(".")):
        apart = behind and "=" not in behind and "." in key and all(key.split("."))
        hint = f", with the value behind the sign: {key}={behind}" if apart else ""
        return Finding("", f"override {written!r}: must be of the form key.path=value{hint}")
    try:
        OmegaConf.update(config, key, yaml.load(value, OverrideLoader) if value else "")
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        if isinstance(at(_plain(config), key), dict):
            return Finding(key, f"must be a section of key: value pairs, got {value}")
        return Finding("", f"override {written!r}: {' '.join(str(error).split())}")
    return None


def _plain(config: DictConfig) -> dict[str, Any]:
    """Interpolations as written."""
    plain: Any = OmegaConf.to_container(config)
    return plain


def _with_parents(path: Path, children: tuple[Path, ...]) -> DictConfig:
    if path in children:
        raise ConfigError([Finding("defaults", f"{path.name} inherits from itself. Remove it.")])
    own = _read_shipped(path) if path.is_relative_to(SHIPPED) else _read(path)
    names = own.get("defaults")
    parents = list[DictConfig]()
    for name in names if isinstance(names, ListConfig) else [names]:
        if name is not None:
            parents.append(_with_parents(_parent(path, str(name)), (*children, path)))
    with evaluating():
        merged = OmegaConf.merge(*parents, own)
    assert isinstance(merged, DictConfig)
    merged.pop("defaults", None)
    return merged


@functools.cache
def _pickled(path: Path) -> bytes:
    """A shipped file over its parents, for copies in a tenth of the time of a merge."""
    return pickle.dumps(_with_parents(path, ()))


@functools.cache
def _read_shipped(path: Path) -> DictConfig:
    """A file that does not change; what is read is for all, to merge and not to change."""
    return _read(path)


def _parent(path: Path, name: str) -> Path:
    """The file beside it, else the shipped one of that name."""
    beside = (path.parent / name).resolve()
    found = SHIPPED / name if not beside.exists() and (SHIPPED / name).exists() else beside
    if found.suffix != ".yaml":  # a stranger's config may name any file of yours
        raise ConfigError(
            [Finding("defaults", f"{name} is not a .yaml file. Name one, or rename it.")]
        )
    return found


def _read(path: Path) -> DictConfig:
    if path.exists() and not path.is_file():
        raise ConfigError([Finding("", f"{path} is not a regular file. Name a YAML file.")])
    text = ""
    try:
        text = path.read_text()
        _refuse_shape(text)
        config = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError([Finding("", _no_file(path))]) from None
    except (OSError, UnicodeDecodeError):
        raise ConfigError([Finding("", f"{path} is not a text file. Name a YAML file.")]) from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        tab = " Indent with spaces: YAML takes no tab there." if TAB.search(text) else ""
        raise ConfigError([Finding("", f"{path} is not valid YAML: {reason}{tab}")]) from None
    if not isinstance(config, DictConfig):
        raise ConfigError([Finding("", f"{path} must contain key: value pairs")])
    if not all(str(key).isidentifier() for key in config):  # OmegaConf takes a text for a key
        raise ConfigError(
            [Finding("", f"{path} has a key that is no name. Write key: value pairs.")]
        )
    return config


def _refuse_shape(text: str) -> None:
    """Raises ValueError for what OmegaConf must not see.

    The stack of libyaml's composer ends the process without a word; a text alone becomes a key.
    """
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if not depth and isinstance(event, yaml.ScalarEvent) and event.value:
            raise ValueError("it is one text. Write key: value pairs")  # to OmegaConf, a key
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _no_file(path: Path) -> str:
    """That there is none, with the file whose name is near but for the suffix."""
    own = path.is_relative_to(SHIPPED)
    there = names() if own else sorted(p.name for p in path.parent.glob("*.yaml"))
    stems = {Path(name).name.removesuffix(".yaml"): name for name in reversed(there)}
    near = difflib.get_close_matches(path.name.removesuffix(".yaml"), stems, n=1)
    hint = f" (did you mean {stems[near[0]]}?)" if near else ""
    if not own:
        return f"config {path} not found{hint}"
    return (
        f"config {path.relative_to(SHIPPED)} not found, neither as a path nor as a shipped "
        f"config{hint}. `nemo-algos configs` lists the shipped ones."
    )


def first_line(error: Exception) -> str:
    """The first line of its message, else its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def install(package: str, extra: str = "") -> str:
    """How a package is had that is not needed by all; extra: of ours, where it has another name."""
    return f"pip install {package} (in a checkout: uv run --extra {extra or package} ...)"


def install_of(module: str | None) -> str:
    """How a module of an extra is had; empty for any other."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    return install(f"'nemo-algos[{extra}]'", extra) if extra else ""


def require(extra: str) -> None:
    """Raises ConfigError where a module of an extra is missing; `lab` has those of `engine` too."""
    needed = [module for module, of in EXTRAS.items() if of in ("engine", extra)]
    if missing := [module for module in needed if find_spec(module) is None]:
        cure = install(f"'nemo-algos[{extra}]'", extra)
        raise ConfigError(
            [
                Finding(
                    "",
                    f"this command needs {', '.join(missing)}, which `pip install nemo-algos` "
                    f"does not install: {cure}",
                )
            ]
        )


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
        return UnknownKey(
            as_names(path), f"unknown key{did_you_mean(loc[-1], _fields(schema, loc[:-1]))}"
        )
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


def _fields(annotation: Any, loc: Sequence[str]) -> list[str]:
    if get_origin(annotation) in (Union, UnionType):
        return next((found for a in get_args(annotation) if (found := _fields(a, loc))), [])
    if get_origin(annotation) in (dict, list):
        return _fields(get_args(annotation)[-1], loc[1:])
    fields = getattr(annotation, "model_fields", {})
    if loc:
        return _fields(fields[loc[0]].annotation, loc[1:]) if loc[0] in fields else []
    return sorted(fields)

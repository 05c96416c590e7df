"""Strict configuration, without torch: inheritance, overrides, every error at once.

A config is YAML; `defaults: other.yaml`, or a list, inherits: a file beside it, or a shipped one.
Overrides are NeMo-RL's `a.b=c`. A schema is a pydantic model that forbids unknown keys.
"""

import difflib
import functools
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_algos.findings import ConfigError, Finding, at
from nemo_algos.interpolation import bounded, evaluating, refuse_too_many

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
HERE = Path(__file__).resolve().parent


def repository_folder(folder: str) -> Path:
    """A folder of the repository, which a wheel has inside the package."""
    inside = HERE / "_repository" / folder
    return inside if inside.exists() else HERE.parent / folder


SHIPPED = repository_folder("examples/configs")
with warnings.catch_warnings(action="ignore"):  # ${shipped:FILE} lies beside the shipped configs
    OmegaConf.register_new_resolver("shipped", lambda name: str(SHIPPED / name), replace=True)
    OmegaConf.register_new_resolver("method_name", method_name, replace=True)


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


def shipped_method(name: str) -> dict[str, Any]:
    """The `method` block of a shipped training config of this name; empty where there is none."""
    path = next((path for path in SHIPPED.glob("*.yaml") if path.stem == name), None)
    plain: Any = OmegaConf.to_container(read(path)) if path else {}
    block = plain.get("method")
    return block if isinstance(block, dict) and plain.get("engine") == "local" else {}


def read(path: Path) -> DictConfig:
    """A YAML file over its parents, interpolations as written. Raises ConfigError."""
    whole = path.resolve()
    own = whole.is_relative_to(SHIPPED)
    return pickle.loads(_pickled(whole)) if own else _with_parents(whole, ())


def apply_overrides(merged: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The config with the overrides `a.b=c` set in place. Raises ConfigError with all that fail."""
    pairs = zip_longest(overrides, overrides[1:], fillvalue="")
    with bounded():
        results = [_override(merged, written, behind) for written, behind in pairs]
    findings = [found for found in results if found]
    if findings:
        raise ConfigError(findings)
    return merged


def resolve(merged: DictConfig) -> dict[str, Any]:
    """Plain dictionaries, interpolations resolved. Raises ConfigError."""
    with evaluating():
        refuse_too_many(merged)
        plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def select(written: DictConfig, path: str) -> Any:
    """The value of one key of a config whose interpolations stand as written, None without it.

    Raises ConfigError.
    """
    with evaluating():
        return OmegaConf.select(written, path)


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

"""What a machine without a GPU needs to run NeMo-RL's own workers, vLLM and refit; tests only.

A shim replaces one thing after the module that holds it was imported; nothing of NeMo-RL, Megatron
or vLLM is edited. Each names the lines that need it (`calls`: a file below the import path, a text
in it): `python -m nemo_cpu` prints the table, and says where those are gone.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Shim:
    """One replacement: apply(module) runs after `module` was imported, before(…) ahead of it."""

    name: str
    module: str
    calls: tuple[tuple[str, str], ...]
    reason: str
    apply: Callable[[Any], None]
    before: Callable[[], None]
    refs: tuple[str, ...]  # the versions of NeMo-RL that need it

    def lines(self) -> Iterator[str]:
        """`file:line` of each call that needs it. Raises LookupError for one that is gone."""
        for file, text in self.calls:
            found = next((p for root in sys.path if (p := Path(root) / file).is_file()), None)
            if found is None:
                raise LookupError(f"{self.name}: there is no {file}")
            source = found.read_text().splitlines()
            number = next((n for n, line in enumerate(source, 1) if text in line), None)
            if number is None:
                raise LookupError(f"{self.name}: {file} has no {text!r} any more")
            yield f"{file}:{number}"


SHIMS: dict[str, Shim] = {}


def shim(
    module: str,
    *calls: tuple[str, str],
    name: str = "",
    before: Callable[[], None] = lambda: None,
    refs: tuple[str, ...] = ("v0.7.0", "main"),
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function of the imported module; its docstring is the reason."""

    def register(apply: Callable[[Any], None]) -> Callable[[Any], None]:
        key = name or apply.__name__
        assert key not in SHIMS, key
        SHIMS[key] = Shim(key, module, calls, apply.__doc__ or "", apply, before, refs)
        return apply

    return register


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, shims: list[Shim]) -> None:
        self.inner, self.shims = inner, shims

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        for one in self.shims:
            one.before()
        self.inner.exec_module(module)
        for one in self.shims:
            one.apply(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: wraps the loaders of the modules that shims are for."""

    def __init__(self, shims: list[Shim]) -> None:
        self.shims = shims

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        wanted = [one for one in self.shims if one.module == fullname]
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if wanted else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, wanted)
        return spec


def replace(owner: Any, name: str, value: Any) -> Any:
    """Set owner.name; returns what was there (None for nothing). For `apply` functions."""
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    return before


def installed() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install() -> None:
    """Before anything else is imported, but for torch: sitecustomize.py."""
    from nemo_cpu import absent, answers, bridge, collectives, data_plane  # noqa: F401, I001
    from nemo_cpu import device, engine, megatron, refit  # noqa: F401

    wanted = list(SHIMS.values())
    sys.meta_path.insert(0, _Finder(wanted))
    sys.meta_path.append(absent.Finder(set(absent.MODULES)))
    for one in wanted:  # tests/conftest.py imports torch
        if one.module in sys.modules:
            one.apply(sys.modules[one.module])

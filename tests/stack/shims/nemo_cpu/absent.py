"""Packages of a GPU's machine that are imported and not used here: a module with the names asked for."""

import importlib.abc
import importlib.machinery
from types import ModuleType
from typing import Any

# name -> who imports it and why nothing of it runs
MODULES: dict[str, str] = {}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, without: set[str]) -> None:
        self.names = set(MODULES) - without

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == n or fullname.startswith(n + ".") for n in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _empty  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def _empty(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})

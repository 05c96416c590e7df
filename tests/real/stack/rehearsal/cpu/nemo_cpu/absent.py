"""Packages of a GPU's machine that are imported and hardly used here: any name of them is a class.

`importing(name)` lets one be found while a module is imported, and no longer: other modules ask by
an import whether Transformer Engine is there.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

# name -> who imports it and why nothing of it runs
MODULES: dict[str, str] = {
    "megatron.energon": "Bridge's data modules for images import it (base_energon_datamodule.py)"
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self.names = names

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


class _Names(type):
    """A class whose attributes are such classes too."""

    def __getattr__(cls, name: str) -> type:
        return _empty(name)


def _empty(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Names(name, (), {"__init__": lambda self, *args, **kwargs: None})


def found(name: str) -> None:
    """From now on, until `lost`."""
    sys.meta_path.append(Finder({name}))


def lost(name: str) -> None:
    sys.meta_path.pop()
    for module in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
        del sys.modules[module]

"""griffe extension: docstrings are prose with formulas and tables, shown as they stand.

A paragraph with aligned or indented lines becomes a code block; in the others, signs that Markdown
would take for itself are escaped. Indented formulas are code blocks already. A class shows its
fields as its source writes them, which says their types and defaults in a line each.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Extension, Module, Object

ALIGNED = re.compile(r"\S {2,}\S|\n {2,}\S")
CODE = re.compile(r"(`[^`]*`)")
SIGNS = re.compile(r"([*_\[\]$])")


class AsWritten(Extension):
    """Every docstring of the package, before mkdocstrings renders it."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once, when all of the package is read."""
        show(pkg)


def show(owner: Object) -> None:
    """The docstring of a module, class, function or attribute, and those of its members."""
    if owner.docstring:
        fields = lines(owner) if isinstance(owner, Class) else []
        owner.docstring.value = as_written("\n".join([owner.docstring.value, "", *fields]).strip())
    for member in owner.members.values():
        if isinstance(member, Object):  # not what a module imports
            show(member)


def lines(owner: Class) -> list[str]:
    """The public fields without a docstring, `    name: type = default`."""
    fields = [m for m in owner.members.values() if isinstance(m, Attribute) and not m.docstring]
    return [f"    {line(f)}" for f in fields if f.annotation and not f.name.startswith("_")]


def line(field: Attribute) -> str:
    """One field, as its class writes it."""
    return f"{field.name}: {field.annotation}" + (f" = {field.value}" if field.value else "")


def as_written(text: str) -> str:
    """The docstring as Markdown that shows it."""
    return "\n\n".join(_paragraph(p) for p in text.split("\n\n"))


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return text
    if ALIGNED.search(text):
        return "\n".join(f"    {line}" for line in text.splitlines())
    parts = CODE.split(text)
    return "".join(p if i % 2 else _escaped(p) for i, p in enumerate(parts))


def _escaped(text: str) -> str:
    return SIGNS.sub(r"\\\1", text.replace("<", "&lt;"))

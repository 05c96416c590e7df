"""The way of every text to a terminal, which must obey none of those that come from anyone."""

import shutil
import sys
import textwrap
from typing import Any

import rich.console
import typer
from rich.text import Text

from nemo_algos.untrusted import printable


class Console(rich.console.Console):
    """Rich's, without control characters in what it is given."""

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be drawn again. FORCE_COLOR, as Jupyter sets it, makes no pipe one."""
        return super().is_terminal and (bool(self._force_terminal) or self.file.isatty())

    def render_str(self, text: str, **options: Any) -> Text:
        """A text, or a table's cell, as it is shown."""
        return super().render_str(printable(text), **options)


def echo(
    text: object = "", *, color: str | None = None, err: bool = False, nl: bool = True
) -> None:
    """A line, or without `nl` a part of one."""
    typer.secho(printable(str(text)), fg=color, err=err, nl=nl)


def sentence(text: object, *, behind: int = 0, color: str | None = None, err: bool = False) -> None:
    """Lines broken at words, on a terminal alone: a file and another program get whole lines.

    behind: columns that stand before the first line; the others begin below its text.
    """
    stream = sys.stderr if err else sys.stdout
    lines = str(text).split("\n")
    if stream.isatty():
        width = max(shutil.get_terminal_size().columns - 1 - behind, 40)
        broken = []
        for line in lines:
            broken.append(
                textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
            )
        lines = []
        for parts in broken:
            lines += parts
    echo(("\n" + " " * behind).join(lines), color=color, err=err)

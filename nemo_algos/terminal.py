"""The way of every text to a terminal, which must obey none of those that come from anyone."""

from typing import Any

import rich.console
import typer
from rich.text import Text

from nemo_algos.untrusted import printable


class Console(rich.console.Console):
    """Rich's, without control characters in what it is given."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A text, or a table's cell, as it is shown."""
        return super().render_str(printable(text), **options)


def echo(
    text: object = "", *, color: str | None = None, err: bool = False, nl: bool = True
) -> None:
    """A line, or without `nl` a part of one."""
    typer.secho(printable(str(text)), fg=color, err=err, nl=nl)

"""How a command ends where it does not end well: a sentence on stderr, and the exit status.

2 wrong input | 1 a run that failed | 130 Ctrl-C | 143 SIGTERM in training (local.run)
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager

import typer

STOPPED = "stopped; what is stored stays: give the same command again to go on"
WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


@contextmanager
def ended() -> Iterator[None]:
    """Errors become sentences; a ConfigError has a line for each of its findings."""
    try:
        yield
    except ValueError as error:
        raise _exit(2, error) from None
    except (*WRONG_PATHS, PermissionError) as error:
        named = f"{error.filename}: {error.strerror}: name another path"
        raise _exit(2, named if error.filename else error) from None
    except BrokenPipeError:
        raise
    except (OSError, FloatingPointError, BrokenExecutor) as error:
        raise _exit(1, error) from None
    except KeyboardInterrupt:
        raise _exit(130, STOPPED) from None


def _exit(status: int, reason: object) -> typer.Exit:
    typer.secho(reason, fg="red", err=True)
    return typer.Exit(status)

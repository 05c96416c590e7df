"""The `nemo-algos` command: a module here for each of its commands, loaded when that one is run."""

import errno
import re
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from nemo_algos.engines.rewards import Unjudged
from nemo_algos.terminal import echo

STOPPED = "Stopped. Finished work is saved: run the same command again to continue."
USAGE: Any = typer.BadParameter.__mro__[1]  # UsageError, which typer does not export
WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
COMMANDS = {
    "train": "Train a policy with one of the methods.",
    "export": "Write a run's initial model and data, for another engine.",
    "problems": "Write the problems of a benchmark as training rows.",
    "eval": "Sample responses to benchmarks, and score them.",
    "report": "Compare runs in one HTML file that opens offline.",
    "check": "Find mistakes in a config before the run, without a GPU.",
    "mismatch": "Find why sampler and trainer log-probs differ.",
    "plan": "Estimate memory, time and GPU-hours, and find what fits.",
    "slurm": "Submit a config as a Slurm job; status, tail, stop.",
    "configs": "List the shipped configs.",
    "methods": "List the methods, or show what one needs and its defaults.",
    "verify": "Compare this code with a golden file of float64 numbers.",
}


class Commands(TyperGroup):
    """The overview loads none of the commands' modules, and each command ends in one voice."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, its module loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)) if command else None, rest

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's arguments and run it."""
        with exit_on_error():
            return super().invoke(ctx)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors become sentences on stderr, a ConfigError's of a line each, and an exit status.

    2: wrong input; 1: a run that failed; 130: Ctrl-C; 143: SIGTERM in training (local.run).
    """
    try:
        yield
    except ValueError as error:
        raise _exit(2, error) from None
    except USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself
            raise
        raise _exit(2, _wrong_words(error)) from None
    except (*WRONG_PATHS, PermissionError) as error:
        named = f"{error.filename} cannot be used: {error.strerror}. Name another path."
        raise _exit(2, named if error.filename else error) from None
    except ModuleNotFoundError as error:
        from nemo_algos.config import install_of  # the overview loads no config

        if not (cure := install_of(error.name)):
            raise
        what = f"this command needs {error.name}, which is not installed"
        raise _exit(2, f"{what}: {cure}") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise _exit(1, error) from None
        name = str(error.filename or "a name")
        raise _exit(2, f"...{name[-60:]} is too long to be a path. Shorten it.") from None
    except (FloatingPointError, BrokenExecutor, Unjudged) as error:
        raise _exit(1, error) from None
    except KeyboardInterrupt:
        raise _exit(130, STOPPED) from None


def _wrong_words(error: Any) -> str:
    """What is wrong with an option or argument, in a line, and where the right ones are."""
    said = error.format_message().replace("a valid integer", "a whole number")
    said = re.sub(
        r"Invalid value for '([^']+)'(?: / '[^']+')*: Input should be (.*?)(?:, unable to .*)?$",
        r"\1 must be \2",
        said.replace("a valid number", "a number"),
        flags=re.DOTALL,
    )
    end = "" if said.endswith((".", "?")) else "."
    command = error.ctx.command_path + " " if error.ctx else ""
    return f"{said}{end} `{command}-h` lists the options."


def _exit(status: int, reason: object) -> typer.Exit:
    echo(reason, color="red", err=True)
    return typer.Exit(status)


def load_command(name: str) -> Any:
    """A command with its options: the function, or group, of its name in the module of its name."""
    command = getattr(import_module(f"{__name__}.{name}"), name)
    if isinstance(command, typer.Typer):
        return get_command(command)
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    return get_command(alone)


HELP = {"help_option_names": ["-h", "--help"]}  # of each command, too
app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP
)


def _version(asked: bool) -> None:
    if asked:
        echo(f"nemo-algos {version('nemo-algos')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """The policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop."""


def main(*words: str) -> None:
    """Run the command line, behind these words of it."""
    app([*words, *sys.argv[1:]], prog_name="nemo-algos")

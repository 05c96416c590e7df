"""The `nemo-algos` command: a module here for each of its commands, loaded when that one is run."""

import errno
import re
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from nemo_algos.engines.rewards import Unjudged
from nemo_algos.terminal import echo, sentence

STOPPED = "Stopped. Finished work is saved: run the same command again to continue."
USAGE: Any = typer.BadParameter.__mro__[1]  # UsageError, which typer does not export
WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


class Command(NamedTuple):
    """A command in the overview: its panel, its sentence, and the example below its own help."""

    panel: str
    sentence: str
    example: str


TRAIN = "Train"
BEFORE = "Before a run"
AFTER = "After a run"
LOOK = "Look up"
COMMANDS = {
    "train": Command(
        TRAIN,
        "Train a policy with one of the methods.",
        "nemo-algos train etr.yaml method.micro=0.05 grpo.max_num_steps=20\n\n"
        "A comparison: nemo-algos train etr.yaml --methods grpo,etr --seeds 5",
    ),
    "export": Command(
        TRAIN,
        "Write a run's initial model and data, or a benchmark's.",
        "nemo-algos export etr.yaml countdown",
    ),
    "check": Command(
        BEFORE,
        "Find mistakes in a config before the run, without a GPU.",
        "nemo-algos check nemo_rl.yaml method.name=quatro",
    ),
    "plan": Command(
        BEFORE,
        "Estimate memory, time and GPU-hours, and find what fits.",
        "nemo-algos plan recipes/qwen3-30b-a3b-4n8g-ep8.yaml --nodes 2,4,8",
    ),
    "slurm": Command(
        BEFORE,
        "Submit a config as a Slurm job; status, tail, stop.",
        "nemo-algos slurm nemo_rl.yaml --nodes 2 --account A --image nemo-rl.sqsh --submit",
    ),
    "eval": Command(
        AFTER,
        "Sample responses to benchmarks, and score them.",
        "nemo-algos eval eval/countdown.yaml model.run=runs/etr/exp_001",
    ),
    "report": Command(
        AFTER,
        "Compare runs in one HTML file that opens offline.",
        "nemo-algos report runs/grpo/exp_001 runs/etr/exp_001",
    ),
    "mismatch": Command(
        AFTER,
        "Find why sampler and trainer log-probs differ.",
        "nemo-algos mismatch step_000012.npz --model hf/step_11",
    ),
    "configs": Command(LOOK, "List the shipped configs.", "nemo-algos configs"),
    "methods": Command(
        LOOK,
        "List the methods, show one, or verify their numbers.",
        "nemo-algos methods etr",
    ),
}


class _Flags:
    """A flag takes no value, so none is named beside it: typer would show its type."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Plain(_Flags, TyperCommand):
    """A command as its help shows it."""


class Commands(_Flags, TyperGroup):
    """The overview loads none of the commands' modules, and each command ends in one voice."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=command.sentence, rich_help_panel=command.panel)
            for name, command in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)) if command else None, rest

    def invoke(self, ctx: Any) -> Any:
        from nemo_algos.interpolation import limited

        with exit_on_error(), limited():
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
        from nemo_algos.extras import install_of

        cure = install_of(error.name)
        if not cure:
            raise
        raise _exit(2, f"this command needs {error.name}, which is not installed: {cure}") from None
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
    sentence(reason, color="red", err=True)
    return typer.Exit(status)


def load_command(name: str) -> Any:
    """A command with its options: the function, or group, of its name in the module of its name."""
    command = getattr(import_module(f"{__name__}.{name}"), name)
    example = f"Example: {COMMANDS[name].example}"
    if not isinstance(command, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(cls=Plain, epilog=example)(command)
        return get_command(alone)
    group: Any = get_command(command)
    usual = group.commands[group.default]
    usual.epilog = f"{example}\n\n{usual.epilog}"
    return group


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
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """The policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop."""


def main(*words: str) -> None:
    """Run the command line, behind these words of it."""
    app([*words, *sys.argv[1:]], prog_name="nemo-algos")

"""The arguments that commands share, and the config that they name."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from omegaconf import DictConfig
from typer.core import TyperGroup

from nemo_algos import config
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.terminal import sentence


class Words(TyperGroup):
    """A group in which a word that is none of its commands is the first argument of `default`."""

    default: str

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, those of the default command behind its name."""
        known = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if known else [self.default, *args])


SHAPE = "CONFIG KEY=VALUE"
SEVERITY = 8  # columns of the word before a finding
COLORS = {"error": "red", "warning": "yellow", "note": "blue"}
# a key that tells whose config it is -> the config's kind and its command
KINDS = {
    "benchmarks": ("an evaluation", "eval"),
    "method": ("a training", "train"),
    "grpo": ("a training", "train"),
}


def complete_config(incomplete: str) -> list[str]:
    """Names of configs that begin so."""
    return [name for name in config.names() if name.startswith(incomplete)]


Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="a YAML file, or the name of a shipped one",
        autocompletion=complete_config,
    ),
]


def once(overrides: list[str] | None) -> list[str] | None:
    """The overrides; of a key that is given twice it is said which one counts."""
    given = Counter(override.partition("=")[0].lstrip("+") for override in overrides or [])
    twice = []
    for key, count in given.items():
        if count > 1:
            twice.append((key, count))
    reason = "it is set {} times; the last one applies"  # without the values: one may be a key
    show([Finding(key, reason.format(count), "warning") for key, count in twice], err=True)
    return overrides


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="keys of the config that are set, such as method.name=etr",
        callback=once,
    ),
]
NemoRL = Annotated[
    str,
    typer.Option(
        metavar="FOLDER",
        is_eager=True,  # known before `check --explain` asks for it, wherever that stands
        help="the NeMo-RL that will run: its checkout; default: $NEMO_RL_HOME, the installed one, "
        "or this folder",
    ),
]


def load_config(name: str, overrides: list[str] | None, command: str) -> DictConfig:
    """The config with its overrides. Raises ConfigError, also where it is another command's."""
    merged = config.apply_overrides(config.read(config.find(name)), overrides or [])
    kind, taker = next((KINDS[key] for key in KINDS if key in merged), ("", command))
    if taker != command:
        raise ConfigError([Finding("", f"{name} is {kind} config. Run: nemo-algos {taker} {name}")])
    return merged


def show(findings: Iterable[Finding], err: bool = False) -> None:
    """Print a line each, once, the errors first."""
    for f in sorted(dict.fromkeys(findings), key=lambda f: list(COLORS).index(f.severity)):
        typer.secho(f"{f.severity:{SEVERITY}}", fg=COLORS[f.severity], err=err, nl=False)
        sentence(f, behind=SEVERITY, err=err)

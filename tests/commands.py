"""The commands, run in this process; their parser is built once."""

from click.testing import CliRunner
from typer.main import get_command

from nemo_algos.cli import app

COMMAND = get_command(app)


def invoke(*arguments):
    return CliRunner().invoke(COMMAND, [str(argument) for argument in arguments])

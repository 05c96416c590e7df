"""`--help` of each script shows a command with its name; test_front_door.py has nemo-algos' own."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(r"^    (typer\.run\(main\)|app\(\))$", re.MULTILINE)
SCRIPTS = [
    path
    for folder in ("examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if PROGRAM.search(path.read_text())
]
OTHERS = {
    "statsmodels",
    "trl",
}  # in other environments: make test-peers, benchmarks/requirements.txt
FIRST = ROOT / "examples/papers/replicate.py"


def help_of(path, monkeypatch):
    """What the script prints for --help."""
    handed = []
    monkeypatch.setattr(typer, "run", handed.append)
    monkeypatch.setattr(typer.Typer, "__call__", lambda app: handed.append(app))
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    (app,) = handed
    if not isinstance(app, typer.Typer):
        alone = typer.Typer()
        alone.command()(app)
        app = alone
    monkeypatch.undo()
    return CliRunner().invoke(app, ["--help"], terminal_width=200).stdout


def test_the_scripts_are_there():
    assert FIRST in SCRIPTS and len(SCRIPTS) > 20


@pytest.mark.parametrize(
    "path",
    [FIRST, *(pytest.param(path, marks=pytest.mark.long) for path in SCRIPTS if path != FIRST)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_scripts_help_shows_a_command(path, monkeypatch):
    try:
        said = help_of(path, monkeypatch)
    except ImportError as missing:  # or a stand-in of another test is there in its place
        if missing.name not in OTHERS:
            raise
        pytest.skip(f"{missing.name} is not installed here")
    assert re.search(rf"\b{re.escape(path.name)} ", said.partition("Usage:")[2].partition("\n")[2])

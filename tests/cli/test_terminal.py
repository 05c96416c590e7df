"""What a stranger has named is printed, and no terminal obeys it."""

import ast
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import nemo_algos
from nemo_algos.cli import app
from nemo_algos.cli.arguments import show
from nemo_algos.findings import Finding
from nemo_algos.terminal import Console

PACKAGE = Path(nemo_algos.__file__).parent
EVIL = "a\x1b[2J\x1b]0;b\x07\x9b2J\x08c"
COLOR = re.compile(r"\x1b\[[\d;]*m")  # click's and rich's own
# terminal.py itself; what runs beside a job, in a child process; a page's table
OWN = {"terminal.py", "scripts/slurm/train.py", "preflight/plan/report.py"}
OWN |= {"engines/__init__.py"}  # of loggers inside other trainers
OWN |= {"preflight/forecast/template.py"}


def manifest(folder, change):
    (folder / "manifest.json").write_text(json.dumps({"config": change}))
    return ["train", "--resume", str(folder)]


def golden(folder, change):
    inputs = {"mask": [[1]], "logprobs": [[-1.0]], "old_logprobs": [[-1.0]], "rewards": [1.0]}
    case = {"name": EVIL, "method": "grpo", "params": {}, "inputs": inputs, "expected": {}}
    text = json.dumps({"cases": [{**case, **change}]})
    (folder / "golden.json").write_text(text)
    return ["methods", "--verify", str(folder / "golden.json")]


def array(folder):
    np.savez(folder / "d.npz", **{EVIL: np.ones(3)})
    return ["mismatch", str(folder / "d.npz")]


def row(folder):
    (folder / "d.jsonl").write_text(json.dumps({EVIL: 1}) + "\n")
    return ["mismatch", str(folder / "d.jsonl")]


def config(folder, text):
    (folder / "x.yaml").write_text(text.replace("EVIL", json.dumps(EVIL)))
    return ["check", str(folder / "x.yaml")]


PRINTED = {
    "a manifest's value": lambda f: manifest(f, {"data": {"task": f"{EVIL}:x"}}),
    "a manifest's key": lambda f: manifest(f, {"data": {EVIL: "http://x"}}),
    "a case's name": lambda f: golden(f, {"expected": {"loss": 7.0}}),
    "a case's markup": lambda f: golden(f, {"name": "[/x]" + EVIL, "expected": {"loss": 7.0}}),
    "a case's method": lambda f: golden(f, {"method": EVIL}),
    "a case's parameter": lambda f: golden(f, {"params": {EVIL: 1}}),
    "an array's name": array,
    "a row's key": row,
    "a config's key": lambda f: config(f, "defaults: grpo.yaml\nEVIL: 1\n"),
    "a config's value": lambda f: config(f, "defaults: grpo.yaml\nmethod: {name: EVIL}\n"),
    "a config's parent": lambda f: config(f, "defaults: EVIL\n"),
    "a config's interpolation": lambda f: config(f, 'defaults: grpo.yaml\nx: "${a[2Jb}"\n'),
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_stranger_has_named_is_harmless(name, tmp_path):
    done = CliRunner().invoke(app, PRINTED[name](tmp_path), color=True)
    assert done.exit_code in (1, 2), done.exception
    assert not isinstance(done.exception, Exception), done.exception
    said = COLOR.sub("", done.stdout + done.stderr)
    assert "a" in said
    assert {c for c in said if not c.isprintable()} <= {"\n"}


def test_tables_and_lines_of_the_console_are_harmless(capsys):
    from rich.table import Table

    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    for shown in (table, EVIL):
        Console(force_terminal=True, width=200).print(shown)
    said = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert said.count("2J") == 8
    assert {c for c in said if not c.isprintable()} == {"\n"}


def test_a_notebooks_pipe_is_written_once(monkeypatch):
    """Jupyter sets FORCE_COLOR for what a cell starts; a drawing over and over is no log."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    pipe = io.StringIO()
    console = Console(file=pipe)
    with console.status("loading"):
        console.print("a line")
    assert pipe.getvalue() == "a line\n"


def prints(path):
    """The calls that reach a terminal past terminal.py."""
    tree = ast.parse(path.read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    of_rich = {"Console"} if any(node.module == "rich.console" for node in froms) else set()
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {f.id for f in calls if isinstance(f, ast.Name)} & ({"print"} | of_rich)
    pairs = {ast.unparse(f) for f in calls if isinstance(f, ast.Attribute)}
    return names | pairs & {"typer.echo", "typer.secho", "click.echo", "click.secho"}


def test_everything_printed_goes_one_way():
    found = {p.relative_to(PACKAGE).as_posix(): prints(p) for p in PACKAGE.rglob("*.py")}
    assert {path for path, calls in found.items() if calls} - {"cli/arguments.py"} <= OWN
    assert found["cli/arguments.py"] == {"typer.secho"}  # of a severity, without a line's end
    assert found["terminal.py"] == {"typer.secho"}


@pytest.mark.parametrize(
    ("terminal", "said"),
    [
        (True, "warning a.key: it is " + "x" * 30 + " and\n        more, which ends here\n"),
        (False, "warning a.key: it is " + "x" * 30 + " and more, which ends here\n"),
    ],
)
def test_a_finding_is_broken_at_words_on_a_terminal_alone(terminal, said, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    finding = Finding("a.key", "it is " + "x" * 30 + " and more, which ends here", "warning")
    show([finding])
    assert COLOR.sub("", capsys.readouterr().out) == said

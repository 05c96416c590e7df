"""The commands as one: names, the overview, arguments that they share, how they end."""

import functools
import gzip
import importlib
import json
import re
import subprocess
import sys
import types
from concurrent.futures import BrokenExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import typer
from says import Says
from typer.testing import CliRunner

from nemo_algos import cli
from nemo_algos.algorithms.extensions.terms import TERMS
from nemo_algos.cli import COMMANDS, STOPPED, app, load_command
from nemo_algos.config import SHIPPED
from nemo_algos.findings import ConfigError, Finding

ROOT = Path(__file__).parents[2]
CONFIGURED = ("train", "eval", "check", "plan", "slurm")
RUN = "etr.yaml method.mirco=1"


def ended(*words):
    """(status, stderr's lines) of a command that says nothing else."""
    done = CliRunner().invoke(app, list(words))
    assert not isinstance(done.exception, Exception), done.exception
    assert done.stdout == ""
    return done.exit_code, done.stderr.splitlines()


def shell(code):
    return subprocess.run([sys.executable, *code], capture_output=True, text=True)


# ---- the overview


def test_every_command_is_a_module_of_its_name_and_in_the_overview():
    modules = {p.stem for p in Path(cli.__file__).parent.glob("*.py")}
    assert modules == {*COMMANDS, "__init__", "arguments", "explain"}
    said = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        assert f"│ {name:{width}}  {command.sentence}" in said, name
        assert load_command(name).help.strip()


HELPS = [*COMMANDS, "export problems", "export card", "slurm status", "slurm tail", "slurm stop"]


@pytest.mark.parametrize("command", HELPS)
def test_a_help_ends_with_an_example_and_names_each_value(command):
    help_ = CliRunner().invoke(app, [*command.split(), "-h"], terminal_width=100).stdout
    (example,) = re.findall(r"Example: (nemo-algos .*)", help_)
    assert example.startswith(f"nemo-algos {command}")
    options = [line for line in help_.splitlines() if line.startswith("│ --")]
    assert options and not [line for line in options if re.search(r"<\w", line)]


def test_the_overview_loads_no_command_and_no_config():
    code = "import sys; from nemo_algos.cli import app; app(['--help'], standalone_mode=False)"
    loads = "print([m for m in ('pydantic', 'omegaconf', 'nemo_algos.config') if m in sys.modules])"
    assert shell(["-c", f"{code}; {loads}"]).stdout.splitlines()[-1] == "[]"


def test_version_and_module():
    done = shell(["-m", "nemo_algos", "--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nemo-algos 0.")


def test_an_unknown_command_names_the_near_one():
    status, said = ended("chek", "etr.yaml")
    assert status == 2 and "No such command 'chek'. Did you mean 'check'?" in " ".join(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("slurm", "nemo_rl.yaml", "--nodes", "x"), "--nodes whole"),
        (("plan", "nemo_rl.yaml", "--gpu"), "--gpu"),
        (("train", "etr.yaml", "--threads", "2"), "--threads"),
        (("check",), "Missing CONFIG"),
    ],
)
def test_a_wrong_option_is_one_line(words, said):
    status, (line,) = ended(*words)
    assert status == 2 and line == Says(f"{said} -h")


def completed(line, monkeypatch):
    monkeypatch.setenv("_NEMO_ALGOS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return CliRunner().invoke(app, [], prog_name="nemo-algos").stdout.split()


def test_completion_of_commands_options_and_configs(monkeypatch):
    assert completed("nemo-algos ", monkeypatch) == list(COMMANDS)
    assert completed("nemo-algos plan --nem", monkeypatch) == ["--nemo-rl"]
    assert completed("nemo-algos eval eval/co", monkeypatch) == ["eval/countdown.yaml"]
    assert completed("nemo-algos train et", monkeypatch) == ["etr.yaml"]


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_version_is_no_checkout(command):
    said = ended(command, "nemo_rl.yaml", "--nemo-rl", "v0.8.0")
    assert said == (2, [Says("v0.8.0 git clone --branch v0.8.0")])


# ---- CONFIG


@pytest.mark.parametrize("words", [RUN, f"--config {RUN}", "method.mirco=1 --config etr.yaml"])
def test_the_config_of_train_is_the_first_argument_or_an_option(words):
    want = Says("method.mirco: micro")
    assert ended("train", *words.split()) == (2, [want])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "etr.yaml"),
        ("grpo.seed=1 etr.yaml", "etr.yaml"),
        ("--config etr.yaml grpo.yaml", "'grpo.yaml' key.path=value"),
        ("etr.yaml grpo.yaml", "'grpo.yaml' key.path=value"),
        ("etr.yaml --resume {file}", "--resume {file}"),
        ("--resume {file}", "--resume {file}"),
        ("--resume {0}", "{0}"),
        ("--resume {0}/no", "{0}/no"),
        ("nemo_rl.yaml --resume {0}", "--resume: NeMo-RL checkpointing.checkpoint_dir"),
    ],
)
def test_what_train_cannot_start_from(words, said, tmp_path):
    given = {"file": tmp_path / "file"}
    given["file"].write_text("")
    status, lines = ended("train", *words.format(tmp_path, **given).split())
    assert (status, lines) == (2, [Says(said.format(tmp_path, **given))])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "{}/manifest.json JSON"),
        ("[]", "{}/manifest.json JSON object"),
        ("{}", "{}/manifest.json config"),
        ('{"config": {"method": {"name": "etr"}}}', "method.mirco: micro"),
    ],
)
def test_a_manifest_that_is_none_and_overrides_of_one(text, said, tmp_path):
    (tmp_path / "manifest.json").write_text(text)
    status, lines = ended("train", "--resume", str(tmp_path), "method.mirco=1")
    assert status == 2 and Says(said.replace("{}", f"{tmp_path}")) in lines


def test_a_wrong_config_is_reported_before_a_model_can_be_made():
    """One process for all, as torch takes seconds to load: what one loads, the next would show."""
    code = """
import sys
from nemo_algos.cli import app
for override in sys.argv[1:]:
    try:
        app(["train", "etr.yaml", override])
    except SystemExit as end:
        print(end.code, {"transformers", "nemo_algos.engines.local.build"} & set(sys.modules))
        print("end", file=sys.stderr)
"""
    done = shell(["-c", code, "method.mirco=1", "method.name=ert", "grpo.seed=x", "seed"])
    assert done.stdout.splitlines() == ["2 set()"] * 4
    said = done.stderr.splitlines()
    assert said[1::2] == ["end"] * 4 and "end" not in said[::2]


def test_nemo_rl_that_is_not_there_is_one_sentence():
    status, (line,) = ended("train", "nemo_rl.yaml")
    assert status == 2 and line == Says("engine: nemo_rl")
    assert "nvcr.io/nvidia/nemo-rl" in line


@pytest.mark.parametrize("command", CONFIGURED)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nope.yaml", ""),
        ("countdown.yaml", "eval/countdown.yaml"),
        ("etr", "etr.yaml"),
        ("ert.yaml", "etr.yaml"),
        ("eval/countdwn.yaml", "eval/countdown.yaml"),
        ("nowhere/gspo.yaml", "gspo.yaml"),
    ],
)
def test_a_missing_config_names_the_near_one(command, name, hint):
    assert ended(command, name) == (2, [Says(f"{name} {hint} `nemo-algos configs`")])


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_config_that_is_no_text(command, tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1\xff\xfe")
    for path in (tmp_path, tmp_path / "x.parquet"):
        said = Says(f"{path.resolve()} YAML")
        assert ended(command, str(path)) == (2, [said])


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        ("eval", "etr.yaml", "nemo-algos train etr.yaml"),
        ("train", "eval/etr.yaml", "nemo-algos eval eval/etr.yaml"),
        ("check", "eval/etr.yaml", "nemo-algos eval eval/etr.yaml"),
        ("plan", "eval/etr.yaml", "nemo-algos eval eval/etr.yaml"),
        ("slurm", "eval/etr.yaml", "nemo-algos eval eval/etr.yaml"),
    ],
)
def test_the_config_of_another_command(command, name, said):
    assert ended(command, name) == (2, [Says(f"{name} {said}")])


def test_every_shipped_config_is_of_its_folders_command():
    folders = {"eval": "eval"}
    for path in SHIPPED.rglob("*.yaml"):
        name = path.relative_to(SHIPPED).as_posix()
        command = folders.get(name.split("/")[0], "train")
        if "/base/" not in name:
            cli.import_module("nemo_algos.cli.arguments").load_config(name, [], command)


# ---- keys


def test_keys_of_nemo_rl_are_named_as_such():
    keys = ["logger.swanlab_enabled", "grpo.val_batch_size", "cluster"]
    status, said = ended("train", "etr.yaml", *(f"{key}={{}}" for key in keys))
    assert status == 2
    assert sorted(said) == [Says(f"{key}: NeMo-RL") for key in sorted(keys)]


def test_an_unknown_benchmark_names_the_valid_ones():
    given = ["model.run=x", "benchmarks.nope={}"]
    status, (said,) = ended("eval", "eval/countdown.yaml", *given)
    assert status == 2 and said.startswith("benchmarks: no nope (valid: acpbench_bool, ")


# ---- how it ends


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("a: b"), 2, "a: b"),
        (FileNotFoundError(2, "No such file", "/x"), 2, "/x No such file"),
        (PermissionError(13, "Permission denied", "/x"), 2, "/x Permission denied"),
        (OSError("cannot save"), 1, "cannot save"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (FloatingPointError("loss is nan"), 1, "loss is nan"),
        (BrokenExecutor("a worker died"), 1, "a worker died"),
        (KeyboardInterrupt(), 130, STOPPED),
    ],
)
def test_one_way_to_end(error, status, said, capsys):
    with pytest.raises(typer.Exit) as end, cli.exit_on_error():
        raise error
    out, err = capsys.readouterr()
    assert (end.value.exit_code, out) == (status, "") and err == Says(said)


def test_a_bug_of_ours_stays_a_traceback():
    with pytest.raises(AssertionError), cli.exit_on_error():
        raise AssertionError


class ErrorOfRay(FloatingPointError):
    """As RayTaskError(FloatingPointError) is one."""


# what is raised, by which part of a run inside NeMo-RL, its exit status, and whether with traceback
ENDS = [
    (ConfigError([Finding("engine", "this NeMo-RL is not known")]), "compose", 2, False),
    (ConfigError([Finding("engine", "this NeMo-RL is not known")]), "ready", 2, False),
    (FileNotFoundError(2, "No such file", "/x"), "ready", 2, False),
    (ValueError("not enough values to unpack"), "run", 1, True),
    (UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"), "run", 1, True),
    (FileNotFoundError(2, "No such file", "/x"), "run", 1, True),
    (PermissionError(13, "Permission denied", "/x"), "run", 1, True),
    (TimeoutError("the worker may be dead"), "run", 1, True),
    (OSError(28, "No space left on device"), "run", 1, True),
    (ModuleNotFoundError("No module named 'wandb'", name="wandb"), "run", 1, True),
    (ImportError("cannot import name x"), "run", 1, True),
    (KeyError("idx"), "run", 1, True),
    (BrokenProcessPool("a loader died"), "run", 1, True),
    (ErrorOfRay("in an actor"), "run", 1, True),
    (FloatingPointError("step 3: the loss is nan"), "run", 1, False),
    (BrokenExecutor("NeMo Gym makes no more rollouts"), "run", 1, False),
    (ConfigError([Finding("engine", "workers cannot import nemo_algos")]), "run", 2, False),
    (KeyboardInterrupt(), "run", 130, False),
]


@pytest.mark.parametrize(("error", "part", "status", "whole"), ENDS)
def test_a_run_inside_nemo_rl_keeps_the_traceback_of_what_fails_after_ray(
    error, part, status, whole, monkeypatch, capsys
):
    def do(name, *_):
        if name == part:
            raise error

    parts = {name: functools.partial(do, name) for name in ("compose", "ready", "run")}
    for module in ("engines.nemo.launch", "preflight.check.launcher"):
        made = types.ModuleType(f"nemo_algos.{module}")
        vars(made).update(parts)
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr("nemo_algos.cli.train.find_spec", lambda name: True)
    with pytest.raises(typer.Exit) as end, cli.exit_on_error():
        importlib.import_module("nemo_algos.cli.train").train(["nemo_rl.yaml"])
    said = capsys.readouterr().err
    assert (end.value.exit_code, "Traceback" in said) == (status, whole)
    if whole:
        assert ", in do\n" in said and str(error) in said.splitlines()[-1]


# ---- methods and verify


def test_methods_keep_their_values_in_a_narrow_pipe():
    text = CliRunner().invoke(app, ["methods"]).stdout
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    rows = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)
    known = [
        *cli.import_module("nemo_algos.algorithms.methods").METHODS,
        *(f"terms.{name}" for name in TERMS),
    ]
    assert [r["method"] for r in rows] == known
    assert len(text.splitlines()) < len(known) + 15  # a line each, and the families' names
    for row in rows:
        assert row["method"] in text.split() and row["paper"] in text
        own = CliRunner().invoke(app, ["methods", row["method"]]).stdout
        assert "…" not in own and max(map(len, own.splitlines())) <= 80
        assert {f"{k}={v}" for k, v in row["defaults"].items()} <= {*own.split()}


def test_a_method_that_is_none_has_a_nearest_name():
    status, (line,) = ended("methods", "sapoo")
    assert status == 2 and line == Says("method.name: 'sapoo' sapo")
    status, (line,) = ended("methods", "terms.nl")
    assert status == 2 and line == Says("'terms.nl' terms.nll")


FORMAT = "version tolerance cases"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.md", b"# readme", "JSON"),
        ("x.json.gz", b"{}", "gzip"),
        ("x.json", b'{"cases": 3}', "cases"),
    ],
)
def test_what_is_no_golden_file(name, data, said, tmp_path):
    (tmp_path / name).write_bytes(data)
    status, (line,) = ended("methods", "--verify", str(tmp_path / name))
    assert (
        status == 2
        and str(tmp_path / name) in line
        and all(word in line for word in (said, *FORMAT))
    )


@pytest.mark.parametrize(
    "change", [{"inputs": {}}, {"expected": 3}, {"params": None}, {"inputs": 1}]
)
def test_a_case_that_is_none(change, tmp_path):
    golden = json.loads(gzip.decompress((ROOT / "tests/golden/public.json.gz").read_bytes()))
    golden["cases"] = [golden["cases"][0] | change]
    (tmp_path / "x.json").write_text(json.dumps(golden))
    status, (line,) = ended("methods", "--verify", str(tmp_path / "x.json"))
    assert status == 2 and line.startswith("case {")

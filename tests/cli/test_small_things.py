"""What a day with the commands has found: names of runs, lists, hints, and keys given twice."""

import json
import re

import pytest
from says import Says
from typer.testing import CliRunner

from nemo_algos import config
from nemo_algos.cli import COMMANDS, app, load_command
from nemo_algos.cli.train import _with_run_name
from nemo_algos.config import SHIPPED, method_name, run_name

CONFIGURED = ("train", "export", "eval", "check", "plan", "slurm")


def said(*words):
    done = CliRunner().invoke(app, list(words))
    assert not isinstance(done.exception, Exception), done.exception
    return done.exit_code, done.stdout, done.stderr


# ---- names of runs


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ("grpo", "grpo"),
        ({"name": "etr", "micro": 0.1}, "etr"),
        ({"name": "mine:MINE"}, "mine-MINE"),
        ({"name": "my_package.my_module:MINE"}, "my_package.my_module-MINE"),
        ({"advantages": "erpo", "bounds": "etr"}, "erpo+etr"),
        ({"name": "gspo", "bounds": {"name": "etr", "macro": 0.2}}, "gspo+etr"),
        ({"name": "grpo", "advantages": "grpo", "bounds": "grpo"}, "grpo"),
        ({"name": "../../x y"}, "x-y"),
        ({}, "run"),
        (None, "None"),
    ],
)
def test_a_folder_of_a_method_is_safe(block, name):
    assert method_name(block) == name
    assert re.fullmatch(r"[\w.+=@-]+", name, re.ASCII)


def log_dir(name, *overrides):
    merged = config.apply_overrides(config.read(config.find(name)), list(overrides))
    return config.resolve(_with_run_name(merged, name))["logger"]["log_dir"]


def test_runs_of_a_config_lie_under_its_name(tmp_path):
    (tmp_path / "my run: 2.yaml").write_text("defaults: etr.yaml\n")
    (tmp_path / "own.yaml").write_text("defaults: etr.yaml\nlogger: {log_dir: here}\n")
    assert log_dir("etr.yaml") == "runs/etr"
    assert log_dir("clip_high.yaml") == "runs/clip_high"
    assert log_dir("dapo.yaml", "method.clip_high=0.3") == "runs/dapo"
    assert log_dir("dapo.yaml", "method.name=quatro") == "runs/quatro"
    assert log_dir("etr.yaml", "method=grpo") == "runs/grpo"
    assert log_dir("etr.yaml", "method.name=mine:MINE") == "runs/mine-MINE"
    assert log_dir("grpo.yaml", "method.bounds=etr") == "runs/grpo+etr"
    assert log_dir(str(tmp_path / "my run: 2.yaml")) == "runs/my-run-2"
    assert log_dir(str(tmp_path / "own.yaml")) == "here"
    assert log_dir("etr.yaml", "logger.log_dir=/x") == "/x"


def test_no_two_shipped_configs_share_a_folder():
    tops = [p.name for p in SHIPPED.glob("*.yaml") if "local.yaml" in p.read_text()]
    assert len({log_dir(name) for name in tops}) == len(tops) > 12


def test_a_run_name_falls_back():
    assert run_name("x/.yaml", {"name": "etr"}, {"name": "etr"}) == "etr"


# ---- lists


def test_every_shipped_config_has_its_line():
    status, out, err = said("configs", "--json")
    lines = json.loads(out)
    assert (status, err) == (0, "")
    assert {*lines} == {name for name in config.names() if "/base/" not in name}
    assert all(10 < len(line) < 200 for line in lines.values())
    assert lines["dapo.yaml"] == "countdown: grpo with clip_high=0.28, aggregation=token"
    shown = said("configs")[1].splitlines()
    assert [line.split()[0] for line in shown] == [*lines]


@pytest.mark.parametrize(
    ("name", "changed"),
    [("dapo", {"clip_high": 0.28, "aggregation": "token"}), ("clip_high", {"clip_high": 0.28})],
)
def test_a_baseline_is_a_method_with_other_parameters(name, changed):
    row = json.loads(said("methods", name, "--json")[1])[0]
    assert (row["method"], row["config"]) == (name, f"{name}.yaml")
    assert row["is"] == "grpo with " + ", ".join(f"{k}={v}" for k, v in changed.items())
    assert row["defaults"].items() >= changed.items()
    assert row["mean"] == changed.get("aggregation", "sequence")
    assert f"config={name}.yaml" in said("methods", name)[1]


# ---- hints


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_h_is_help_everywhere(command):
    words = command.split()
    short, long = said(*words, "-h"), said(*words, "--help")
    assert short == long and short[0] == 0 and "Usage" in short[1]
    assert not words or load_command(words[0])


def test_papers_evaluations_of_a_run_of_ones_own(tmp_path):
    status, _, err = said("eval", "eval/etr.yaml", "model.run=x", "model.step=3")
    assert status == 2 and "model.engine=local" in err
    assert [line.split(":")[0] for line in err.splitlines()] == ["model.run", "model.step"]
    status, _, err = said("eval", "eval/etr.yaml", "model.run=x", "model.engine=local")
    assert (status, err) == (2, Says("model.run: x manifest.json"))


@pytest.mark.parametrize("command", ["train", "check"])
def test_another_engine_is_told_both(command):
    status, out, err = said(command, "etr.yaml", "engine=trl")
    (line,) = [line for line in (out + err).splitlines() if "engine" in line]
    assert status in (1, 2) and all(word in line for word in ("'trl'", "local", "nemo_rl"))


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_key_that_is_given_twice_is_said(command):
    words = [command, "etr.yaml"] + ["out"] * (command == "export")
    twice = ["grpo.seed=1", "+grpo.seed=2", "nothing=1"]
    _, _, err = said(*words, *twice)
    (line,) = [line for line in err.splitlines() if "2 times" in line]
    assert line == Says("warning grpo.seed: 2")


LONG = 300 * "a"
WRONG = [  # words, what the message names
    (["train", "etr.yaml", f"logger.log_dir={LONG}"], ["aaaa", "too long"]),
    (["check", f"{5000 * 'x'}.yaml"], ["xxxx", "too long"]),
    (["check", "etr.yaml", "--nemo-rl", "v9"], ["--nemo-rl"]),
    (["check", "nemo_rl.yaml", "--nemo-rl", "v9"], ["v9", "git clone"]),
    (["check", "nemo_rl.yaml", "--time", "4 hours"], ["--time", "4 hours"]),
    (["check", "etr.yaml", "data.task=\udcff"], ["data.task"]),
    (["check", "etr.yaml", "grpo.max_num_steps", "5"], ["grpo.max_num_steps=5"]),
    (["check", "etr.yaml", "method.name=ppo"], ["critic", "nemo-algos methods"]),
    (["check", "nemo_rl.yaml", "method.name=ppo"], ["critic", "nemo-algos methods"]),
    (["check", "tab.yaml"], ["tab.yaml", "spaces"]),
    (
        ["check", "math.yaml", "data.train.data_path=x.csv", "policy.model_name=a/b"],
        ["data.train.input_key", "data.train.output_key", "'problem'", "'answer'"],
    ),
]


@pytest.mark.parametrize(("words", "named"), WRONG, ids=lambda x: " ".join(x)[:40])
def test_a_wrong_word_is_named_with_what_to_write(words, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tab.yaml").write_text("grpo:\n\tseed: 1\n")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    status, out, err = said(*words)
    assert status in (1, 2) and all(word in out + err for word in named), out + err
    assert len(out + err) < 1000

"""The command: from a YAML file to its report, again without a run, a sentence for mistakes."""

import csv
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trainers
import yaml
from runner import write_table
from says import Says
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.cli import study as study_cli
from nemo_algos.engines.local import build
from nemo_algos.jsonl import lock_folder

STUDY = {
    "settings": {
        "grpo.max_num_steps": 1,
        "grpo.num_prompts_per_step": 2,
        "grpo.num_generations_per_prompt": 2,
        "policy.train_global_batch_size": 4,
        "grpo.max_val_samples": 2,
        "grpo.val_samples_per_prompt": 4,
    },
    "regimes": {
        "r": {
            "claim": "-",
            "baseline": "grpo",
            "seeds": 2,
            "first_seed": 2,
            "tune": {
                "grid": {"policy.optimizer.kwargs.lr": [1e-4, 2e-4]},
                "rounds": [{"seeds": 2}],
            },
            "arms": {"grpo": {}, "etr": {}},
        }
    },
}
PROGRAM = Path(__file__).parents[3] / "examples" / "run_study.py"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(STUDY))
    return str(tmp_path / "mine.yaml")


@pytest.fixture
def run(file, tmp_path, monkeypatch):
    """The command in this process, on an untaught model; figures are not saved."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    monkeypatch.setattr(build, "warm_start", lambda *_: trainers.policy().model)
    monkeypatch.setattr(study_cli, "fresh", lambda _: ThreadPoolExecutor(1))
    out = f"out={tmp_path}/out"
    return lambda *overrides: CliRunner().invoke(app, ["study", file, out, *overrides])


def test_to_the_report_and_again(run, tmp_path):
    first = run()
    assert first.exit_code == 0, first.output
    assert "8 runs, 0 " in first.stdout and "12 runs, 8 " in first.stdout
    assert "12 runs, 12 " in run().stdout
    folder = tmp_path / "out" / "mine"
    assert "(r_tuning)\n" in (folder / "report.md").read_text()
    assert first.stdout.splitlines()[-1] == Says(f"*: 95 0 {folder}/report.md")
    assert len((folder / "summary.csv").read_text().splitlines()) > 20
    assert len(list((folder / "raw").iterdir())) == 12


def test_each_run_is_a_line_where_there_is_no_terminal(run):
    lines = run("settings={grpo.num_update_epochs: 2}").stdout.splitlines()
    assert [line[8:] for line in lines if line.endswith("12 runs done")] == [
        f"  {i} of 12 runs done" for i in range(9, 13)
    ]


def test_two_at_a_time_do_not_write_to_one_folder(run, tmp_path):
    (tmp_path / "out" / "mine").mkdir(parents=True)
    with lock_folder(tmp_path / "out" / "mine", "writing to"):
        done = run()
    assert (done.exit_code, done.stderr) == (2, Says(f"{tmp_path}/out/mine"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workers=0", "workers: input should be greater than 0"),
        ("settings={policy.optimizer.kwargs.lrr: 1}", "unexpected keyword argument 'lrr'"),
        ("out=/dev/null/x", "Not a directory"),
    ],
)
def test_one_sentence_for_a_mistake(run, override, said):
    done = run(override)
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert len(done.stderr.splitlines()) <= 3


WORKER = """
import os, pathlib, sys
if "--multiprocessing-fork" in sys.orig_argv:
    pathlib.Path(os.environ["WORKS"]).touch()
"""


def test_an_interrupt_ends_it_and_nothing_more_is_run(file, tmp_path):
    """Sent when the worker, which has been handed its first run, has begun to start."""
    (tmp_path / "sitecustomize.py").write_text(WORKER)
    works = tmp_path / "works"
    long = [sys.executable, str(PROGRAM), file, f"out={tmp_path}/out", "workers=1"]
    process = subprocess.Popen(
        [*long, "settings={grpo.max_num_steps: 100000}"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "WORKS": str(works)},
        # what runs in the background inherits that SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not works.exists() and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == Says("saved")
    assert works.exists() and not list((tmp_path / "out" / "mine" / "raw").iterdir())


def test_finished_runs_are_verified(run, tmp_path):
    first = run()
    assert first.exit_code == 0, first.output
    again = run("--verify", "0.1")
    assert (again.exit_code, again.stdout.count("the same numbers")) == (0, 2), again.output
    table = tmp_path / "out" / "mine" / "results.csv"
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["pass@1"] = "0.123"
    write_table(table, rows)
    changed = run("--verify", "0.1")
    assert changed.exit_code == 1 and "pass@1: 0.123" in changed.stdout

"""The command: from a YAML file to its report, again without a run, a sentence for mistakes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

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
            "tune": {"key": "policy.optimizer.kwargs.lr", "values": [1e-4, 2e-4], "seeds": 2},
            "arms": {"grpo": {}},
        }
    },
}
STUDY["regimes"]["r"]["arms"]["etr"] = {}
PROGRAM = Path(__file__).parents[2] / "examples" / "run_study.py"


@pytest.fixture
def command(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(STUDY))
    return [sys.executable, str(PROGRAM), str(tmp_path / "mine.yaml"), f"out={tmp_path}/out"]


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_to_the_report_and_again(command, tmp_path):
    first = run(command)
    assert first.returncode == 0, first.stderr
    assert "8 runs, 0 of them done" in first.stdout and "12 runs, 8 of them done" in first.stdout
    again = run(command)
    assert "12 runs, 12 of them done" in again.stdout
    folder = tmp_path / "out" / "mine"
    assert "## r_tuning" in (folder / "report.md").read_text()
    assert len((folder / "summary.csv").read_text().splitlines()) > 20
    assert len(list((folder / "raw").iterdir())) == 12


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workers=0", "workers: input should be greater than 0"),
        ("settings='{policy.optimizer.kwargs.lrr: 1}'", "unexpected keyword argument 'lrr'"),
        ("out=/dev/null/x", "Not a directory"),
    ],
)
def test_one_sentence_for_a_mistake(command, override, said):
    done = run([*command, override.replace("'", "")])
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 3


def test_an_interrupt_ends_it_and_nothing_more_is_run(command, tmp_path):
    long = [*command, "settings={grpo.max_num_steps: 100000}"]
    process = subprocess.Popen(long, stderr=subprocess.PIPE, text=True, start_new_session=True)
    folder = tmp_path / "out" / "mine" / "raw"
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not list(folder.iterdir())

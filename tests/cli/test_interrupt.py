"""Ctrl-C before a run: one line, status 130, no traceback, and nothing is said to be saved."""

import signal
import subprocess
import sys

import pytest
from matrix import some_of

SLOW = """
import os, signal, sys, threading
import nemo_algos.__main__ as command
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["nemo-algos", "train", "etr.yaml", "logger.log_dir={folder}"]
command.main()
"""


@pytest.mark.parametrize(
    "module", some_of(["typer", "omegaconf", "torch", "numpy", "transformers"], 3)
)
def test_ctrl_c_while_a_module_is_loaded(module, tmp_path):
    program = SLOW.format(module=module, folder=tmp_path / "runs")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.splitlines() == ["Stopped while loading. Nothing was saved."]
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_before_the_first_step(tmp_path, monkeypatch):
    """Between the modules and the run: the config is judged."""
    from typer.testing import CliRunner

    from nemo_algos.cli import app, train

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "judge", interrupted)
    said = CliRunner().invoke(app, ["train", "etr.yaml"])
    assert said.exit_code == 130
    assert said.stderr.split() == [
        "Stopped",
        "before",
        "the",
        "first",
        "step.",
        "Nothing",
        "was",
        "saved.",
    ]

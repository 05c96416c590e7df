"""A folder with a config, a stand-in for NeMo-RL's checkout, and the fake Slurm on the path."""

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nemo_algos.cli import app

CONFIG = "engine: nemo_rl\nmethod: {name: etr}\ncluster: {num_nodes: 2, gpus_per_node: 4}\n"
LAUNCH = "--account a --image b:c --nemo-rl {0}/nemo-rl --out {0}/runs"


@pytest.fixture(name="here")
def folder(tmp_path, monkeypatch):
    """At the end no job of the fake is left."""
    (tmp_path / "nemo-rl").mkdir()
    (tmp_path / "nemo-rl" / "ray.sub").write_text("exit 0\n")
    (tmp_path / "etr.yaml").write_text(CONFIG)
    (tmp_path / "slurm").mkdir()
    fakes = Path(__file__).parent / "fake_slurm"
    monkeypatch.setenv("PATH", f"{fakes}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    for name in ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "CONTAINER", "NEMO_RL", "FAKE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for pid in (tmp_path / "slurm").glob("*.pid"):
        subprocess.run(["pkill", "-KILL", "-s", pid.read_text().strip()])


def slurm(here, line=""):
    """The exit status and lines of the command."""
    words = ["slurm", f"{here}/etr.yaml", *LAUNCH.format(here).split(), *line.split()]
    done = CliRunner().invoke(app, words)
    assert not isinstance(done.exception, Exception), done.exception
    return done.exit_code, done.output.splitlines()

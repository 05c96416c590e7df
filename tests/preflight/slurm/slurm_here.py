"""A folder with a config, a seeming checkout of NeMo-RL, and stubs of Slurm's commands.

The stubs note how they were called. A Slurm is in tests/real/slurm.
"""

import atexit
import dataclasses
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import releases
from commands import invoke

from nemo_algos.preflight.check import release
from nemo_algos.preflight.check.release import Release
from nemo_algos.preflight.slurm import prepare

CONFIG = "engine: nemo_rl\nmethod: {name: etr}\ncluster: {num_nodes: 2, gpus_per_node: 8}\n"
LAUNCH = "--account a --image b:c --checkout {0}/nemo-rl --out {0}/runs"
OURS = ("CONTAINER", "NEMO_RL", "HF_HOME", "HF_HUB_CACHE", "WANDB_API_KEY")


class Said(NamedTuple):
    """By the command: its status, the lines of stdout and of stderr."""

    status: int
    out: list[str]
    err: list[str]


def stub(here: Path, name: str, script: str) -> None:
    """A command on the path; it notes its arguments in called/NAME, a line each time."""
    file = here / "bin" / name
    file.write_text(f'#!/bin/bash\necho "$*" >>{here}/called/{name}\n{script}\n')
    file.chmod(0o755)


def called(here: Path, name: str) -> list[str]:
    """The arguments of a stub, a line each time."""
    file = here / "called" / name
    return file.read_text().splitlines() if file.exists() else []


def checkout(folder: Path) -> None:
    """What is read of NeMo-RL's; its types and configs are written once, to be read alone."""
    folder.mkdir()
    for part in _written().iterdir():
        (folder / part.name).symlink_to(part)
    (folder / "ray.sub").write_text("exit 0\n")


@functools.cache
def _written() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nemo-rl-"))
    atexit.register(shutil.rmtree, folder)
    releases.write(folder)
    return folder


@pytest.fixture(name="here")
def folder(tmp_path, monkeypatch):
    """sinfo knows no nodes; sbatch counts."""
    for name in ("bin", "called"):
        (tmp_path / name).mkdir()
    checkout(tmp_path / "nemo-rl")
    (tmp_path / "etr.yaml").write_text(CONFIG)
    stub(tmp_path, "sinfo", "exit 1")
    stub(tmp_path, "sbatch", f'echo "Submitted batch job $(wc -l <{tmp_path}/called/sbatch)"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in [*OURS, *(n for n in os.environ if n.startswith(("SBATCH_", "SLURM_")))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(prepare, "read_checkout", read_once)
    return tmp_path


def read_once(root: Path) -> Release:
    """A test's checkout has the files of all tests' checkouts: they are read once."""
    return dataclasses.replace(release.read(_written()), root=root)


def slurm(here: Path, line: str = "", *words: str) -> Said:
    """`nemo-algos slurm` of the folder's config."""
    launch = ["slurm", f"{here}/etr.yaml", *LAUNCH.format(here).split(), *line.split(), *words]
    return invoked(*launch)


def invoked(*words: str) -> Said:
    """The command, without a traceback."""
    done = invoke(*words)
    assert not isinstance(done.exception, Exception), done.exception
    return Said(done.exit_code, done.stdout.splitlines(), done.stderr.splitlines())

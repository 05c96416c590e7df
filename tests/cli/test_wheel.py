"""The wheel in an environment of its own, far from any checkout: commands, configs, data."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = """
check etr.yaml
check recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml
plan nemo_rl.yaml
methods
"""
CODE = """
import sys
import nemo_algos
from nemo_algos.cli import app
from nemo_algos.config import load, find
statuses = [app(line.split(), standalone_mode=False) for line in sys.stdin if line.strip()]
print(statuses, nemo_algos.__file__)
print(open(load(find("smollm2.yaml"))["data"]["train"]["data_path"]).readline())
"""
DATA_CHECK = """
import os, pathlib, subprocess, sys
from nemo_algos.preflight.check.data import environment
folder = pathlib.Path("run")
folder.mkdir()
paths = environment.variables(pathlib.Path("nemo_rl"), folder.resolve())["PYTHONPATH"]
code = "from nemo_algos.engines.nemo import worker_env as c; print(c.ROOT); print(c.refusal())"
subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=True)
print(paths)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheel.

    Its libraries are this environment's, without the .pth files there: one names the checkout.
    """
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["uv", "build", "--wheel", "--quiet", "-o", folder, ROOT], check=True)
    subprocess.run(["uv", "venv", "--quiet", folder / "env"], check=True)
    python, (wheel,) = folder / "env" / "bin" / "python", folder.glob("*.whl")
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def test_the_commands_find_their_configs(python, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    here = {"cwd": tmp_path, "text": True, "capture_output": True}
    done = subprocess.run([python, "-c", CODE], input=COMMANDS, **here)
    *said, statuses, row, _ = done.stdout.splitlines() or [""]
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses.startswith("[0, 0, None, None] "), said
    assert Path(statuses.split()[-1]).is_relative_to(python.parents[1])
    assert '"problem"' in row
    version = subprocess.run([python.with_name("nemo-algos"), "--version"], **here)
    assert version.stdout.startswith("nemo-algos ")


def test_every_file_of_the_package_lies_in_the_wheel(python):
    (there,) = python.parents[1].glob("lib/python*/site-packages/nemo_algos")
    ours, theirs = (
        {p.relative_to(at) for p in at.rglob("*") if p.is_file() and p.suffix != ".pyc"}
        for at in (ROOT / "nemo_algos", there)
    )
    assert len(ours) > 100 and ours == {p for p in theirs if p.parts[0] != "_repository"}


def test_configs_and_job_scripts_lie_in_the_wheel(python, tmp_path):
    folders = "'examples/configs', 'scripts/slurm'"
    code = "from nemo_algos.config import repository_folder as at; "
    code += f"print(*map(at, ({folders})), sep='\\n')"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, text=True, capture_output=True)
    inside = [Path(line) for line in done.stdout.splitlines()]
    for there, folder in zip(inside, ("examples/configs", "scripts/slurm"), strict=True):
        assert there.is_relative_to(python.parents[1])
        tracked = {p.relative_to(ROOT / folder) for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert {p.relative_to(there) for p in there.rglob("*") if p.is_file()} == tracked


def test_a_data_check_has_the_package_alone(python, tmp_path, monkeypatch):
    """Beside the installed one lie its environment's libraries: another torch, another ray."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    here = {"cwd": tmp_path, "text": True, "capture_output": True}
    done = subprocess.run([python, "-c", DATA_CHECK], **here)
    root, refusal, paths = done.stdout.splitlines() or ["", done.stderr, ""]
    assert (root, refusal) == (str(tmp_path / "run" / "package"), "None")
    assert [p.name for p in Path(root).iterdir()] == ["nemo_algos"]
    assert "site-packages" not in [Path(path).name for path in paths.split(os.pathsep)]

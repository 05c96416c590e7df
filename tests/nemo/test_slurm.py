"""A rendered job under a fake Slurm, with NeMo-RL's own ray.sub and a real Ray of two nodes: it
starts, is signalled, saves, is requeued and resumes.

Fakes (tests/scale/fake_slurm): sbatch, srun (pyxis' options are ignored; a node has processes and a
/tmp/ray of its own), scontrol, squeue, sinfo, host. The training program is slurm_program.py.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import checkout
import pytest
from typer.testing import CliRunner

from nemo_algos.cli import app

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "scale" / "fake_slurm"
NAMESPACES = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--fork", "true"]
CONFIG = """
engine: nemo_rl
method: {name: etr}
cluster: {num_nodes: 2, gpus_per_node: 2}
"""


def has_namespaces() -> bool:
    try:
        asked = [FAKES / "private_network", *NAMESPACES]
        return subprocess.run(asked, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The fake's folder; at the end none of its processes is left."""
    state = tmp_path / "slurm"
    state.mkdir()
    path = [FAKES, Path(sys.executable).parent]
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, path), os.environ["PATH"]]))
    monkeypatch.setenv("FAKE_SLURM", str(state))
    monkeypatch.setenv("FAKE_CLUSTER", "private_network")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # the newest Ray's own choice, of a head alone
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    yield state
    for pid in state.glob("*.pid"):
        subprocess.run(["pkill", "-KILL", "-s", pid.read_text().strip()])


def until(happened: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.skipif(not has_namespaces(), reason="no namespaces for users here")
def test_a_signalled_job_saves_is_requeued_and_resumes(
    slurm: Path, tmp_path: Path, ref: str
) -> None:
    clone = checkout.home()
    assert clone is not None
    (tmp_path / "etr.yaml").write_text(CONFIG)
    command = f"slurm {tmp_path}/etr.yaml --account a --image b:c --version {ref} --submit"
    where = ["--nemo-rl", str(checkout.worktree(clone, ref)), "--out", str(tmp_path / "runs")]
    program = ["--program", str(Path(__file__).parent / "slurm_program.py")]
    done = CliRunner().invoke(app, [*command.split(), *where, *program])
    assert (done.exit_code, done.output) == (0, "Submitted batch job 1\n")
    run = tmp_path / "runs" / "etr"

    def steps() -> list[str]:
        file = run / "steps.txt"
        return file.read_text().splitlines() if file.exists() else []

    def ended() -> bool:
        return (slurm / "1.state").read_text().split()[0] not in ("PENDING", "RUNNING")

    until(lambda: len(steps()) >= 3 or ended(), 400, "the first attempt did not train")
    os.kill(int((slurm / "1.pid").read_text()), signal.SIGUSR1)
    until(ended, 400, "the job did not end")

    log = (run / "slurm-1.log").read_text()
    assert (slurm / "1.state").read_text() == "0 etr\n", log[-3000:]
    assert steps() == [f"{step} 2" for step in (1, 2, 3, 4, 5)]  # each once, on two nodes
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"step_3", "step_5"}
    assert (run / "finished").exists()
    first, second = (run / "logs" / f"1{n}-logs" / "ray-driver.log" for n in ("", "-1"))
    assert f"stopped early by {run}/stop: exit 75" in first.read_text()
    assert "stopped early" not in second.read_text()
    assert log.count("to be continued: requeued") == 1


LOOP = """
import sys
from nemo_rl.utils.timer import TimeoutChecker
assert sys.argv[1] == "--config", sys.argv
import nemo_algos.methods.build
print(nemo_algos.__path__[0])
timeout = TimeoutChecker({limit!r}, fit_last_save_time=True)
for step in range(3):
    if timeout.check_save():
        sys.exit(print("stopped at", step))
sys.exit({status})
"""


@pytest.mark.parametrize(
    ("limit", "stop", "status", "exits"),
    [
        ("01:00:00:00", False, 0, 0),
        (None, False, 0, 0),
        (None, False, 3, 3),
        (None, True, 0, 75),
        ("00:00:00:00", False, 0, 75),
    ],
)
def test_the_driver_says_whether_training_is_to_be_continued(
    tmp_path: Path, limit: str | None, stop: bool, status: int, exits: int
) -> None:
    """By its exit status; with NeMo-RL's own TimeoutChecker."""
    (tmp_path / "program.py").write_text(LOOP.format(limit=limit, status=status))
    if stop:
        (tmp_path / "stop").touch()
    # as in the container: NeMo-RL and what is installed, but not this package
    places = [os.environ["PYTHONPATH"].split(os.pathsep)[0]]  # conftest.py
    places += [place for place in sys.path if Path(place).name == "site-packages"]
    driver = [sys.executable, "-S", ROOT / "scripts" / "slurm" / "train.py"]
    done = subprocess.run(
        [*driver, tmp_path, tmp_path / "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == exits, done.stderr
    assert str(ROOT / "nemo_algos") in done.stdout
    assert ("stopped at 0" in done.stdout) == (exits == 75)

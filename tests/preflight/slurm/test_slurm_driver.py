"""A job's driver: where it trains, when training has ended, when a restart is of no use.

NeMo-RL is a stand-in of a few lines here; tests/real/nemo has its own, tests/real/slurm a job
around it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMER = """
import sys
class TimeoutChecker:
    def check_save(self):
        return len(sys.argv) > 9
"""
PROGRAM = """
import os, sys
from pathlib import Path
from nemo_rl.utils.timer import TimeoutChecker
assert sys.argv[1:] == ["--config", os.environ["CONFIG"]], sys.argv
import nemo_algos
print(Path("examples/prompts/cot.txt").read_text())
stops = TimeoutChecker().check_save()
for step in os.environ["SAVES"].split():
    folder = Path(os.environ["CHECKPOINTS"], f"step_{step}")
    folder.mkdir(parents=True)
    (folder / "training_info.json").touch()
sys.exit(int(os.environ["STATUS"]))
"""


@pytest.fixture
def here(tmp_path):
    """NeMo-RL's root, a run's folder and a program."""
    (tmp_path / "NeMo" / "nemo_rl" / "utils").mkdir(parents=True)
    (tmp_path / "NeMo" / "nemo_rl" / "__init__.py").touch()
    (tmp_path / "NeMo" / "nemo_rl" / "utils" / "timer.py").write_text(TIMER)
    (tmp_path / "NeMo" / "examples" / "prompts").mkdir(parents=True)
    (tmp_path / "NeMo" / "examples" / "prompts" / "cot.txt").write_text("Think.")
    (tmp_path / "run").mkdir()
    config = f"checkpointing: {{checkpoint_dir: {tmp_path}/kept}}\n"
    (tmp_path / "run" / "config.yaml").write_text(config)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def trained(here, saves="", status=0, stop=False, last_step="0"):
    """An attempt that saves these steps: the driver's status and what it printed."""
    run = here / "run"
    (run / "stop").touch() if stop else (run / "stop").unlink(missing_ok=True)
    own = {"CONFIG": f"{run}/config.yaml", "CHECKPOINTS": f"{here}/kept", "SAVES": saves}
    own |= {"STATUS": str(status), "PYTHONPATH": f"{here}/NeMo"}
    places = [place for place in sys.path if Path(place).name == "site-packages"]
    own["PYTHONPATH"] = os.pathsep.join([own["PYTHONPATH"], *places])
    script = [sys.executable, "-S", ROOT / "scripts" / "slurm" / "train.py"]
    done = subprocess.run(
        [*script, run, here / "program.py", last_step],
        cwd=run,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def finished(here):
    return (here / "run" / "finished").exists()


def test_nemo_rl_s_prompts_are_found_and_the_end_is_noted(here):
    """In NeMo-RL's root, with this checkout on the path."""
    assert trained(here, "1 10") == (0, "Think.\n")
    assert finished(here)


def test_an_error_is_not_the_end(here):
    assert trained(here, "1", status=3) == (3, "Think.\n")
    assert not finished(here)


def test_the_asynchronous_trainer_must_have_saved_its_last_step(here):
    """It prints an error and returns."""
    status, said = trained(here, "1 2", last_step="5")
    assert (status, finished(here)) == (1, False)
    assert "ended after step 2 of 5: the error is above" in said
    assert trained(here, "5", last_step="5")[0] == 0 and finished(here)


def test_what_stops_early_is_to_be_continued(here):
    status, said = trained(here, "3", stop=True)
    assert (status, finished(here)) == (75, False)
    assert f"stopped early by {here}/run/stop: exit 75" in said


def test_what_stops_early_and_saves_nothing_is_not(here):
    assert trained(here, "3")[0] == 0
    status, said = trained(here, "", stop=True)
    assert status == 1
    assert f"stopped early by {here}/run/stop, and nothing is saved after step 3" in said


def test_steps_are_numbers(here):
    """As NeMo-RL counts: what is being written is tmp_step_N."""
    for name in ("step_x", "tmp_step_19", "step_10", "step_9"):
        (here / "kept" / name).mkdir(parents=True)
        (here / "kept" / name / "training_info.json").touch()
    assert trained(here, "", last_step="10")[0] == 0
    assert trained(here, "", last_step="11")[0] == 1


def test_a_folder_without_a_checkpoint_is_refused(here):
    """NeMo-RL would resume from it, and fail; it must not count as training's end."""
    (here / "kept" / "step_99" / "policy").mkdir(parents=True)
    status, said = trained(here, "1 2", last_step="50")
    assert (status, finished(here)) == (1, False) and "step_99" in said
    assert not (here / "kept" / "step_1").exists()

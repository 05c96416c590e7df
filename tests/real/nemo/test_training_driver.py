"""A job's driver with NeMo-RL's own TimeoutChecker, CheckpointManager and prompts.

Its exit status says whether training is to be continued; test_slurm_driver.py has the rest.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
import nemo_rl
from nemo_rl.data.interfaces import TaskDataSpec
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.config import load_config
from nemo_rl.utils.timer import TimeoutChecker
assert sys.argv[1] == "--config", sys.argv
import nemo_algos.algorithms.build
print(nemo_algos.__path__[0])
configs = Path(nemo_rl.__path__[0]).parent / "examples" / "configs"
data = load_config(configs / "grpo_math_1B.yaml")["data"]["default"]
print(TaskDataSpec(task_name="math", prompt_file=data["prompt_file"]).prompt)
keys = {{"metric_name": None, "higher_is_better": True, "keep_top_k": None, "save_period": 100}}
keys |= {{"save_optimizer": False, "enabled": True, "checkpoint_dir": "{kept}"}}
saver = CheckpointManager(keys)
timeout = TimeoutChecker({limit!r}, fit_last_save_time=True)
for step in range(1, 4):
    stop = timeout.check_save()
    if stop or step == 3:
        saver.finalize_checkpoint(saver.init_tmp_checkpoint(step, {{"total_steps": step}}))
    if stop:
        sys.exit(print("stopped at", step))
sys.exit({status})
"""


@pytest.mark.parametrize(
    ("limit", "stop", "status", "exits"),
    [
        ("01:00:00:00", False, 0, 0),
        (None, False, 3, 3),
        (None, True, 0, 75),
        ("00:00:00:00", False, 0, 75),
    ],
)
def test_the_driver_says_whether_training_is_to_be_continued(
    tmp_path: Path, limit: str | None, stop: bool, status: int, exits: int
) -> None:
    kept = tmp_path / "kept"
    program = PROGRAM.format(limit=limit, status=status, kept=kept)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "config.yaml").write_text(f"checkpointing: {{checkpoint_dir: {kept}}}")
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
    assert str(ROOT / "nemo_algos") in done.stdout and "boxed" in done.stdout
    assert ("stopped at 1" in done.stdout) == (exits == 75)
    assert (tmp_path / "finished").exists() == (exits == 0)
    assert [path.name for path in kept.iterdir()] == [f"step_{1 if exits == 75 else 3}"]

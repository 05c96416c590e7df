"""The whole run as a job: NeMo-RL's trainer, workers, vLLM and refit on two nodes, without a GPU.

FSDP over the two and a sampler on each, by ray.sub and `nemo-algos slurm` as they are. Needs the
environment of tests/real/stack (tests/real/stack/rehearsal/machine.py), and minutes.
"""

import json
import math
import os
import subprocess
from collections.abc import Iterator

import pytest
import stack_image
from band import embedded, within
from cluster import SINGLE, Cluster, until
from runs import ENDED, Run

from nemo_algos.preflight.slurm.batch import PROGRAM

STEPS, SIGNALLED_AT, ROLLOUTS, MINUTES = 5, 2, 16 * 16, 60
OPTIONS = "--nodes 2 --partition single --checkout /srv/nemo-rl --image stack.sqsh"
START = "--mounts /srv/user/start:/srv/user/start"
OVERRIDES = f"grpo.max_num_steps={STEPS}"
WARMUP = [2e-4 * (0.2 + 0.8 * step / 5) for step in range(STEPS)]  # the recipe's LinearLR
METRICS = ("lr", "reward", "mismatch/max", "verifier/ok", "loss", "grad_norm")
READ = "import json, pathlib, sys, whole_run as w; folder, *names = sys.argv[1:]; "
READ += "print(json.dumps([w.curve(pathlib.Path(folder), f'train/{name}') for name in names]))"


@pytest.fixture
def whole(cluster: Cluster, run: Run) -> Iterator[Run]:
    """A run of the shipped recipe, on nodes of one GPU."""
    stack_image.write(cluster)
    for name in SINGLE:
        cluster.start_node(name)
    until(lambda: cluster.states("single") == {"idle": 2}, "no two idle nodes", 60)
    run.config = stack_image.RECIPE
    yield run


def drivers(run: Run) -> list[str]:
    """What each attempt's driver said."""
    files = sorted((run.folder / "logs").glob("*-logs/ray-driver.log"), key=os.path.getmtime)
    return [file.read_text(errors="replace") for file in files]


def curves(run: Run) -> dict[str, list[float]]:
    """Metrics of all attempts by step, as the stack's TensorBoard reads them."""
    command = [stack_image.PYTHON, "-c", READ, run.folder, *METRICS]
    path = {**os.environ, "PYTHONPATH": str(stack_image.STACK)}
    done = subprocess.run(command, env=path, check=True, capture_output=True, text=True)
    read = dict(zip(METRICS, json.loads(done.stdout.splitlines()[-1]), strict=True))
    for name, values in read.items():
        assert list(map(int, values)) == list(range(1, STEPS + 1)), (name, values)
    return {name: list(values.values()) for name, values in read.items()}


def went_on(run: Run) -> None:
    """Saved where it was asked to stop, and from there as if it had not been."""
    assert ["stopped early" in text for text in drivers(run)] == [True, False]
    saved = (run.folder / "checkpoints").glob("step_*")
    steps = {int(path.name.removeprefix("step_")) for path in saved}
    assert SIGNALLED_AT <= min(steps) < max(steps) == STEPS and len(steps) == 2
    assert run.finished
    found = curves(run)
    assert found["lr"] == pytest.approx(WARMUP)
    assert found["verifier/ok"] == [ROLLOUTS] * STEPS
    assert max(found["mismatch/max"]) < 1e-4
    assert all(map(math.isfinite, found["loss"] + found["grad_norm"]))
    assert min(found["grad_norm"]) > 0
    within(found["reward"], embedded("etr", STEPS))


@pytest.mark.skipif(bool(stack_image.MISSING), reason=stack_image.MISSING)
def test_a_signalled_run_is_requeued_and_its_curve_goes_on(cluster: Cluster, whole: Run) -> None:
    job = whole.submit(f"{OPTIONS} {START} --program {PROGRAM} {OVERRIDES}")

    def step_runs() -> bool:
        assert cluster.job(job)["JobState"] not in ENDED, whole.log()
        return any(f"Step {SIGNALLED_AT}/{STEPS}" in text for text in drivers(whole))

    until(step_runs, f"no step {SIGNALLED_AT}", MINUTES * 60)
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    assert whole.ended(seconds=MINUTES * 60) == ("COMPLETED", "0:0", 1)
    went_on(whole)

"""How a run ends that does not complete: never as `finished`, never in circles."""

import image
import pytest
from cluster import Cluster, until
from runs import Run

EARLY = "checkpointing.checkpoint_must_save_by=00:00:00:00"  # after the first step of each attempt


def test_requeues_are_limited(run: Run) -> None:
    run.submit(f"--max-requeues 2 grpo.max_num_steps=9 {EARLY}")
    assert run.ended() == ("FAILED", "75:0", 2)
    assert run.steps() == [(1, 0), (2, 1), (3, 2)]
    assert "restarted 2 times (--max-requeues)" in run.log()
    assert not run.finished


def test_an_attempt_that_saves_nothing_is_the_last(cluster: Cluster, run: Run) -> None:
    """Its limit is too short for a step: a further one would get no further."""
    job = run.submit("grpo.max_num_steps=9 checkpointing.save_period=100", NO_SAVE="1", HOLD_AT="1")
    run.trained(1)
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    assert run.ended() == ("FAILED", "1:0", 0)
    assert not run.finished


def test_cancelled_is_cancelled(cluster: Cluster, run: Run) -> None:
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    assert cluster.user(f"scancel {job}").returncode == 0
    state, _, restarts = run.ended()
    assert (state, restarts) == ("CANCELLED", 0)
    assert not run.finished


@pytest.mark.parametrize("script", ["exit 0", "srun true", "srun /nowhere; exit 0"])
def test_finished_is_said_by_the_driver_alone(cluster: Cluster, run: Run, script: str) -> None:
    """Whatever ray.sub's status says."""
    image.bare_checkout(cluster.home / f"{run.name}-nemo-rl", script)
    run.submit(f"--checkout {run.name}-nemo-rl grpo.max_num_steps=2")
    assert run.ended() == ("FAILED", "1:0", 0)
    assert not run.finished


def test_an_image_that_is_gone(cluster: Cluster, run: Run) -> None:
    cluster.user("cp light.sqsh gone.sqsh")
    job = run.submit("--image gone.sqsh --sbatch=--hold grpo.max_num_steps=2")
    assert cluster.user(f"rm gone.sqsh && scontrol release {job}").returncode == 0
    assert run.ended(job) == ("FAILED", "1:0", 0)
    assert not run.finished


def test_an_error_of_the_program_is_the_jobs(run: Run) -> None:
    run.submit("grpo.max_num_steps=5", FAILS_AT="3")
    assert run.ended() == ("FAILED", "1:0", 0)
    assert run.steps() == [(1, 0), (2, 0), (3, 0)]
    assert not run.finished


def test_checkpoints_that_are_gone_end_the_job(cluster: Cluster, run: Run) -> None:
    """It would train the same steps for ever."""
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    until(lambda: cluster.job(job)["Restarts"] == "1", "requeued")
    (run.folder / "checkpoints").rename(run.folder / "lost")
    assert run.ended() == ("FAILED", "1:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0)]
    (log,) = run.folder.glob("logs/*-1-logs/ray-driver.log")
    assert "step 3 was saved, but" in log.read_text() and not run.finished

"""How a run ends that does not complete: never as `finished`, never in circles."""

import image
import pytest
from cluster import NODES, Cluster, until
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
    assert run.ends() == ["cancelled"] and not run.finished


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
    assert run.ended(job) == ("FAILED", "1:0", 2)  # on each of the nodes
    assert run.ends() == ["nodes"] * 3 and not run.finished


def test_errors_are_retried_as_often_as_was_said(run: Run) -> None:
    """One run fails and is not to be retried, one fails at the same step again, one fails once."""
    line = "grpo.max_num_steps=5 checkpointing.save_period=2"
    again, once = run.beside(f"{run.name}-again"), run.beside(f"{run.name}-once")
    run.submit(line, FAILS_AT="3")
    again.submit(f"{line} --retries 2", FAILS_AT="3")
    once.submit(f"{line} --retries 1", CRASH_AT="3")
    assert run.ended() == ("FAILED", "1:0", 0)
    assert run.steps() == [(1, 0), (2, 0), (3, 0)]
    assert again.ended() == ("FAILED", "1:0", 2)
    assert again.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)]
    assert again.ends() == ["failed"] * 3 and again.log().count("requeued") == 2
    assert not run.finished and not again.finished
    assert once.ended() == ("COMPLETED", "0:0", 1)
    assert once.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (5, 1)]


def test_a_run_that_hangs_is_restarted_with_its_stacks_saved(run: Run) -> None:
    line = "--stalled 1 grpo.max_num_steps=5 checkpointing.save_period=2"
    assert run.command(line).returncode == 0
    script = run.folder / "job.sh"
    assert "export STALLED=60\n" in script.read_text()
    script.write_text(script.read_text().replace("export STALLED=60\n", "export STALLED=3\n"))
    job = run.resubmit(HANG_AT="3")
    assert run.ended() == ("COMPLETED", "0:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (5, 1)]
    assert run.ends() == ["stalled", "finished"]
    (stacks,) = (run.folder / "logs" / f"{job}-logs").glob("stacks-*.log")
    assert "program.py" in stacks.read_text()


SMI = """#!/bin/bash
[[ ! $SLURM_RESTART_COUNT && $SLURM_NODEID == 1 ]] && hostname >~/bad
for ((gpu = 0; gpu < 8; gpu++)); do
	[[ $gpu == 7 && $(hostname) == $(cat ~/bad) ]] || echo "GPU $gpu: H100"
done
"""


def test_a_bad_node_is_left_out(cluster: Cluster, run: Run) -> None:
    """Its nvidia-smi has lost a GPU: nothing is trained on it."""
    smi = cluster.home / "smi" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    path = f"/srv/user/smi:{cluster.path}"
    job = run.submit("--nodes 2 --sbatch=--exclude=n4 grpo.max_num_steps=2", PATH=path)
    state, _, restarts = run.ended()
    assert state == "COMPLETED" and restarts in (1, 2)  # 2: KILL came before the node was left out
    bad = (cluster.home / "bad").read_text().strip()
    assert set(cluster.nodes(job)) == set(NODES) - {bad}
    assert set(cluster.job(job)["ExcNodeList"].split(",")) == {bad, "n4"}
    assert run.ends() == ["nodes"] * restarts + ["finished"]
    assert run.steps() == [(1, 0), (2, 0)]
    assert f"{bad}: nvidia-smi lists 7 GPUs of 8" in run.log()


def test_a_controller_that_is_away_is_waited_for(cluster: Cluster, run: Run) -> None:
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    with cluster.away():
        (run.folder / "stop").touch()
        driver = run.folder / "logs" / f"{job}-logs" / "ray-driver.log"
        until(lambda: "exit 75" in driver.read_text(), "not saved")
        assert cluster.user("squeue").returncode  # it is away when job.sh asks
    assert run.ended() == ("COMPLETED", "0:0", 1)
    assert run.ends() == ["saved", "finished"]
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_stop_and_save_ends_the_run_for_good(cluster: Cluster, run: Run) -> None:
    """Its chain too; to submit it again goes on."""
    run.submit("--chain 2 grpo.max_num_steps=5", HOLD_AT="3")
    first, second = run.jobs
    run.trained(3)
    done = cluster.user(f"nemo-algos slurm stop --save runs/{run.name}")
    assert (done.returncode, done.stderr) == (0, "")
    assert run.ended(second)[0] == "CANCELLED"
    assert run.ended(first) == ("COMPLETED", "0:0", 0)
    assert run.ends() == ["stopped"] and not run.finished
    assert run.ended(run.resubmit()) == ("COMPLETED", "0:0", 0)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_checkpoints_that_are_gone_end_the_job(cluster: Cluster, run: Run) -> None:
    """It would train the same steps for ever."""
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    until(lambda: cluster.job(job)["Restarts"] == "1", "requeued")
    (run.folder / "checkpoints").rename(run.folder / "lost")
    assert run.ended() == ("FAILED", "1:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0)]
    assert "step 3 was saved, but" in run.log() and not run.finished

"""Jobs of one run, one after another; sweeps; arrays; two runs of one name."""

import json

import pytest
from cluster import Cluster, until
from runs import Run

STOP = "scancel --batch --signal=USR1"


@pytest.mark.smoke
def test_jobs_of_a_chain_continue_one_another_and_the_last_has_nothing_to_do(
    cluster: Cluster, run: Run
) -> None:
    run.submit("--chain 3 grpo.max_num_steps=5", HOLD_AT="3")
    first, second, _ = run.jobs
    run.trained(3)
    assert cluster.user(f"{STOP} {first}").returncode == 0
    assert [run.ended(job) for job in run.jobs] == [("COMPLETED", "0:0", 0)] * 3
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    log = run.log()
    assert log.count("the next job of the chain goes on") == 1
    assert log.count("finished before") == 1
    assert cluster.job(second)["StartTime"] >= cluster.job(first)["EndTime"]


def test_where_requeue_is_refused_the_job_fails_and_says_what_to_do(
    cluster: Cluster, run: Run
) -> None:
    job = run.submit("--sbatch=--no-requeue grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    assert cluster.user(f"{STOP} {job}").returncode == 0
    assert run.ended() == ("FAILED", "75:0", 0)
    assert "Slurm does not requeue" in run.log() and "--chain" in run.log()
    assert run.ended(run.resubmit()) == ("COMPLETED", "0:0", 0)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_a_sweep_is_jobs_that_share_nothing(cluster: Cluster, run: Run) -> None:
    run.submit("--sweep grpo.seed=1,2 --sweep method.name=etr,quatro grpo.max_num_steps=2")
    assert [run.ended(job) for job in run.jobs] == [("COMPLETED", "0:0", 0)] * 4
    points = [run.beside(f"{run.name}-{seed}-{m}") for seed in (1, 2) for m in ("etr", "quatro")]
    for point in points:
        assert point.steps() == [(1, 0), (2, 0)] and point.finished
        info = point.folder / "checkpoints" / "step_2" / "training_info.json"
        assert json.loads(info.read_text()) == {"total_steps": 2}
    assert len(points) == 4 and not run.folder.exists()


def test_an_array_by_hand_trains_nothing(cluster: Cluster, run: Run) -> None:
    assert run.command("grpo.max_num_steps=3").returncode == 0
    job = run.resubmit("--array=0-1")
    until(lambda: len(cluster.tasks(job)) == 2, "two tasks")  # when both have started
    tasks = [int(task["JobId"]) for task in cluster.tasks(job)]
    assert [run.ended(task) for task in tasks] == [("FAILED", "1:0", 0)] * 2
    assert run.steps() == []


def test_two_runs_of_one_name_never_meet(cluster: Cluster, run: Run) -> None:
    """Each is signalled while the other waits or runs; each goes on by itself."""
    other = run.beside(run.name, out="elsewhere")
    for one in (run, other):
        one.submit("--nodes 2 grpo.max_num_steps=5", HOLD_AT="3")
    for one in (run, other):  # two nodes each, of three: the second waits
        one.trained(3)
        assert cluster.user(f"scancel --batch --signal=USR1 {one.jobs[0]}").returncode == 0
    for one in (run, other):
        assert one.ended() == ("COMPLETED", "0:0", 1)
        assert one.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
        assert one.finished

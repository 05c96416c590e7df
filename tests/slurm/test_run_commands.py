"""nemo-algos slurm status | tail | stop."""

import pytest
from cluster import Cluster, until
from runs import Run


@pytest.mark.smoke
def test_status_and_stop(cluster: Cluster, run: Run) -> None:
    run.submit("--chain 2 grpo.max_num_steps=5 checkpointing.save_period=2", HOLD_AT="3")
    first, second = run.jobs
    run.trained(3)
    asked = f"nemo-algos slurm status {run.name} --out runs"
    title, running, waiting = cluster.user(asked).stdout.splitlines()
    assert title == f"{run.name}: step 3 of 5, saved 2"
    assert running.startswith(f"  job {first} RUNNING, 0 restarts, 00:00:")
    assert running.endswith(" of 04:00:00 on n1")
    assert waiting == f"  job {second} PENDING, 0 restarts, waits for Dependency"
    done = cluster.user(f"nemo-algos slurm stop runs/{run.name}")
    assert (done.returncode, done.stdout) == (0, f"{run.name}: stopped {first} {second}\n")
    assert [run.ended(job)[0] for job in run.jobs] == ["CANCELLED"] * 2
    until(lambda: "no job in the queue" in cluster.user(asked).stdout, "still in the queue")
    again = cluster.user(f"nemo-algos slurm stop runs/{run.name}")
    assert again.stdout == f"{run.name}: no job to stop\n"


def test_tail_follows_the_driver(cluster: Cluster, run: Run) -> None:
    run.submit("grpo.max_num_steps=3")
    run.ended()
    done = cluster.user(f"timeout 5 nemo-algos slurm tail runs/{run.name}")
    assert "========================= Step 3/3 =========================" in done.stdout
    shown = cluster.user(f"nemo-algos slurm status runs/{run.name}").stdout
    assert shown.startswith(f"{run.name}: step 3 of 3, saved 3, finished\n  no job in the queue")

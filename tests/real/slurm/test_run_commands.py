"""nemo-algos slurm status | tail | stop."""

import re

import pytest
from cluster import Cluster, until
from runs import Run


@pytest.mark.smoke
def test_status_and_stop(cluster: Cluster, run: Run) -> None:
    run.submit("--chain 2 grpo.max_num_steps=5 checkpointing.save_period=2", HOLD_AT="3")
    first, second = run.jobs
    run.trained(3)
    asked = f"nemo-algos slurm status {run.name} --out runs"
    all_runs = ["nemo-algos", "slurm", "status", "--out", "/srv/user/runs"]
    listed = cluster.root("env", f"PATH={cluster.path}", *all_runs)  # another user, no name
    assert f"{run.name}: step 3 of 5" in listed and f"  job {first} RUNNING" in listed
    title, running, waiting = cluster.user(asked).stdout.splitlines()
    assert title.startswith(f"{run.name}: step 3 of 5") and ", saved 2, " in title
    assert running.startswith(f"  job {first} RUNNING, 0 restarts, 0:")
    assert running.endswith(f" of 4:00:00 on {cluster.nodes(first)[0]}")
    assert waiting == f"  job {second} PENDING, 0 restarts, waits for Dependency"
    done = cluster.user(f"nemo-algos slurm stop runs/{run.name}")
    assert (done.returncode, done.stdout) == (0, f"{run.name}: stopped {first} {second}\n")
    assert [run.ended(job)[0] for job in run.jobs] == ["CANCELLED"] * 2
    over = "cancelled"
    until(lambda: over in cluster.user(asked).stdout, "still in the queue")
    again = cluster.user(f"nemo-algos slurm stop runs/{run.name}")
    assert again.stdout.startswith(f"{run.name}: ") and "stopped" not in again.stdout


def test_tail_follows_the_driver_to_the_end(cluster: Cluster, run: Run) -> None:
    """From attempt to attempt, until no job is left. The signal is sent when it shows step 3."""
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    shown = "until grep -q 'Step 3/5' shown; do sleep 0.2; done"
    signal = f"(touch shown; {shown}; scancel --batch --signal=USR1 {job}) >/dev/null"
    done = cluster.user(f"{{ {signal} & nemo-algos slurm tail runs/{run.name} | tee shown; }}")
    assert done.returncode == 0 and run.finished
    assert re.findall(r" Step (\d)/5 ", done.stdout) == ["1", "2", "3", "4", "5"]
    assert done.stderr.count("ray-driver.log <==") == 2
    shown = cluster.user(f"nemo-algos slurm status runs/{run.name}").stdout
    assert shown.startswith(f"{run.name}: step 5 of 5, saved 5, finished, ")
    assert "complete" in shown

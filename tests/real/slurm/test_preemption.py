"""A job of higher priority takes the nodes: the run is requeued, however the cluster is set."""

from contextlib import nullcontext

import pytest
from cluster import Cluster, until
from runs import Run

SIGNAL = "SlurmctldParameters=preempt_send_user_signal"
OTHER = "sbatch --account a --partition high --nodes 3 --exclusive --output /dev/null --wrap true"


@pytest.mark.parametrize(
    ("partition", "user_signal", "resumes_at"),
    [
        ("batch", False, 3),
        pytest.param("grace", False, 3, marks=pytest.mark.smoke),
        ("grace", True, 4),
        ("cancel", False, 3),
    ],
)
def test_a_preempted_run_goes_on(
    cluster: Cluster, run: Run, partition: str, user_signal: bool, resumes_at: int
) -> None:
    """Saved after step 2, taken after step 3: told so, it saves 3."""
    with cluster.configured(SIGNAL) if user_signal else nullcontext():
        line = "grpo.max_num_steps=5 checkpointing.save_period=2"
        run.submit(f"--partition {partition} {line}", HOLD_AT="3")
        run.trained(3)
        assert cluster.user(OTHER).returncode == 0
        assert run.ended() == ("COMPLETED", "0:0", 1)
    again = [(step, 1) for step in range(resumes_at, 6)]
    assert run.steps() == [(1, 0), (2, 0), (3, 0), *again]
    assert run.finished


@pytest.mark.parametrize("partition", ["batch", "grace"])
def test_an_error_after_a_preemption_is_an_error(
    cluster: Cluster, run: Run, partition: str
) -> None:
    """The second attempt fails by itself."""
    line = f"--partition {partition} grpo.max_num_steps=5 checkpointing.save_period=2"
    run.submit(line, HOLD_AT="3", FAILS_AT="4")
    run.trained(3)
    assert cluster.user(OTHER).returncode == 0
    assert run.ended() == ("FAILED", "1:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)]


def test_what_slurm_ends_is_no_circle(cluster: Cluster, run: Run) -> None:
    """Preempted, requeued by an admin, preempted, each in its first step."""
    job = run.submit("grpo.max_num_steps=3", HOLD_AT="1")
    for attempt in range(4):
        until(lambda a=attempt: (1, a) in run.steps(), f"no attempt {attempt}")
        if attempt == 1:
            cluster.root("scontrol", "requeue", str(job))
        elif attempt < 3:
            assert cluster.user(OTHER).returncode == 0
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    assert run.ended() == ("COMPLETED", "0:0", 4)
    assert run.ends() == ["requeued"] * 3 + ["saved", "finished"]

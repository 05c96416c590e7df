"""The batch script of a run under a fake Slurm: signal, requeue, chain, end.

ray.sub is a few lines here; tests/nemo/test_slurm.py runs NeMo-RL's own with a real Ray.
"""

import time

import pytest
from slurm_fakes import folder, slurm  # noqa: F401

# what the driver does: a line for each attempt, 0 at the one named, 75 when told to stop
TRAINS = 'echo "$SLURM_SUBMIT_DIR" >>$RUN/attempts; [[ $(wc -l <$RUN/attempts) -ge {0} ]] && exit 0'
FRESH = "[[ -e $RUN/stop ]] && exit 8"
WAITS = "for ((i = 0; i < 100; i++)); do [[ -e $RUN/stop ]] && exit 75; sleep 0.1; done; exit 9"


def ended(here, jobs=1):
    """Exit statuses of all jobs, waited for."""
    for _ in range(300):
        states = [p.read_text().split()[0] for p in sorted((here / "slurm").glob("*.state"))]
        if len(states) == jobs and all(state.isdigit() for state in states):
            return states
        time.sleep(0.1)
    raise AssertionError(f"{states}: {[p.read_text() for p in here.rglob('slurm-*.log')]}")


def attempts(here):
    return len((here / "runs" / "etr" / "attempts").read_text().splitlines())


def test_before_the_time_limit_the_job_is_told_to_stop_and_goes_on_in_the_next(here):
    """The fake sends the signal of the script's own header: a minute before 1:01."""
    (here / "nemo-rl" / "ray.sub").write_text(f"{FRESH}\n{TRAINS.format(2)}\n{WAITS}\n")
    assert slurm(here, "--time 1:01 --margin 1 --submit")[0] == 0
    assert ended(here) == ["0"]
    run = here / "runs" / "etr"
    assert (run / "attempts").read_text().split() == [str(run)] * 2  # ray.sub's SLURM_SUBMIT_DIR
    assert (run / "finished").exists()
    log = (run / "slurm-1.log").read_text()
    assert log.count("asked to stop") == 1 and log.count("requeued") == 1


def test_what_stops_early_by_itself_is_requeued_until_it_is_finished(here):
    (here / "nemo-rl" / "ray.sub").write_text(f"{TRAINS.format(4)}\nexit 75\n")
    assert slurm(here, "--submit")[0] == 0
    assert (ended(here), attempts(here)) == (["0"], 4)


@pytest.mark.parametrize("status", [1, 143])
def test_a_failure_and_a_cancelled_job_are_not_requeued(here, status):
    """143: Slurm has ended the steps."""
    (here / "nemo-rl" / "ray.sub").write_text(f"{TRAINS.format(9)}\nexit {status}\n")
    assert slurm(here, "--submit")[0] == 0
    assert (ended(here), attempts(here)) == ([str(status)], 1)
    assert not (here / "runs" / "etr" / "finished").exists()


def test_jobs_of_a_chain_continue_one_another_without_requeue_and_end_with_the_run(here):
    (here / "slurm" / "no_requeue").touch()
    (here / "nemo-rl" / "ray.sub").write_text(f"sleep 1; {TRAINS.format(2)}\nexit 75\n")
    assert slurm(here, "--chain 3 --submit") == (0, ["Submitted batch job 3"])
    assert (ended(here, 3), attempts(here)) == (["0"] * 3, 2)
    logs = [p.read_text() for p in sorted((here / "runs" / "etr").glob("slurm-*.log"))]
    assert sum("next job of the chain" in log for log in logs) == 1
    assert sum("finished before" in log for log in logs) == 1


def test_where_requeue_is_not_allowed_the_job_fails_and_says_what_to_do(here):
    (here / "slurm" / "no_requeue").touch()
    (here / "nemo-rl" / "ray.sub").write_text(f"{TRAINS.format(9)}\nexit 75\n")
    assert slurm(here, "--submit")[0] == 0
    assert (ended(here), attempts(here)) == (["75"], 1)
    assert "requeue is not allowed here" in (here / "runs" / "etr" / "slurm-1.log").read_text()

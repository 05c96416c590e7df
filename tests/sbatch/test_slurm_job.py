"""job.sh alone: what it does with the exit status of ray.sub.

ray.sub is a line of shell here; tests/slurm has a Slurm.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from slurm_here import called, stub

SCRIPT = Path(__file__).parents[2] / "nemo_algos" / "slurm" / "scripts" / "job.sh"
PREEMPTED = "echo '   PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=2026-01-01T00:10:00'"
ALONE = "echo '   PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=None'"


@pytest.fixture
def run(tmp_path):
    """A run's folder; no job of it waits, and requeue is allowed."""
    for name in ("bin", "called", "run/logs"):
        (tmp_path / name).mkdir(parents=True)
    stub(tmp_path, "squeue", "")
    stub(
        tmp_path, "sleep", "exec kill -KILL $PPID"
    )  # Slurm, which ends an attempt that is requeued
    scontrol(tmp_path)
    return tmp_path / "run"


def scontrol(here, show=ALONE, requeue=0):
    stub(here, "scontrol", f"[[ $1 == requeue ]] && exit {requeue}; {show}")


def environment(run, **variables):
    """Of a job with one requeue left."""
    path = f"{run.parent}/bin{os.pathsep}{os.environ['PATH']}"
    own = {"RUN": str(run), "RAY_SUB": f"{run}/ray.sub", "MAX_REQUEUES": "1", "SLURM_JOB_ID": "7"}
    return {**os.environ, "PATH": path, "SLURM_JOB_NAME": "etr-0a", **own, **variables}


def attempt(run, ray_sub, **variables):
    """The exit status and what was said; whether a requeue was asked for."""
    (run / "ray.sub").write_text(ray_sub)
    command = ["bash", str(SCRIPT)]
    done = subprocess.run(
        command, env=environment(run, **variables), capture_output=True, text=True, timeout=60
    )
    asked = "requeue 7" in called(run.parent, "scontrol")
    return done.returncode, done.stdout + done.stderr, asked


def test_ray_sub_starts_in_the_run_s_folder(run):
    says = 'echo "$SLURM_SUBMIT_DIR $BASE_LOG_DIR"; touch $RUN/finished'
    assert attempt(run, says) == (0, f"{run} {run}/logs\n", False)


def test_what_is_to_be_continued_is_requeued(run):
    (run / "stop").touch()
    status, said, asked = attempt(run, "[[ -e $RUN/stop ]] && exit 8; exit 75")
    assert (status, asked) == (-signal.SIGKILL, True)
    assert "to be continued: requeued" in said


@pytest.mark.parametrize("status", [0, 1, 15, 143])
@pytest.mark.parametrize("show", [ALONE, PREEMPTED], ids=["alone", "preempted"])
def test_what_preemption_ends_is_requeued_and_what_fails_is_not(run, status, show):
    """Slurm's SIGTERM to the steps: ray.sub ends with 143, or with what its children made of it."""
    scontrol(run.parent, show)
    got, said, asked = attempt(run, f"exit {status}")
    assert asked is (show == PREEMPTED)
    assert got == (-signal.SIGKILL if asked else status or 1)
    assert ("preempted: requeued" in said) is asked


def test_a_status_of_0_without_the_end_of_training_is_a_failure(run):
    """srun returns it where it could not start anything."""
    status, said, asked = attempt(run, "exit 0")
    assert (status, asked) == (1, False)
    assert f"ray.sub ended, and training has not: see {run}/logs" in said
    assert not (run / "finished").exists()


def test_a_finished_run_starts_nothing(run):
    (run / "finished").touch()
    assert attempt(run, "exit 8")[0] == 0


@pytest.mark.parametrize(("restarts", "starts", "requeues"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_requeues_are_counted(run, restarts, starts, requeues):
    """One is allowed: Slurm's own after a preemption count too."""
    count = {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    status, said, asked = attempt(run, "touch $RUN/started; exit 75", **count)
    assert ((run / "started").exists(), asked) == (bool(starts), bool(requeues))
    assert status == {0: -signal.SIGKILL, 1: 75, 2: 1}[restarts]
    over = f"restarted {restarts} times (--max-requeues): sbatch {run}/job.sh goes on"
    assert (over in said) is not bool(requeues)


def test_tasks_of_an_array_would_write_one_run(run):
    assert attempt(run, "touch $RUN/started", SLURM_ARRAY_TASK_COUNT="2")[0] == 1
    assert not (run / "started").exists()
    assert attempt(run, "touch $RUN/finished", SLURM_ARRAY_TASK_COUNT="1")[0] == 0


def test_the_next_job_of_the_chain_goes_on(run):
    stub(run.parent, "squeue", "echo 8 etr-0a")
    status, said, asked = attempt(run, "exit 75")
    assert (status, asked) == (0, False)
    assert "to be continued by the next job of the chain" in said
    assert called(run.parent, "squeue") == ["--noheader --me --states=PENDING --name=etr-0a"]


def test_where_requeue_is_not_allowed_the_job_says_what_to_do(run):
    scontrol(run.parent, requeue=1)
    status, said, asked = attempt(run, "exit 75")
    assert (status, asked) == (75, True)
    hint = f"requeue is not allowed here: submit again, or use --chain: sbatch {run}/job.sh"
    assert hint in said


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_is_a_file_for_the_driver_and_ray_sub_lives(run, sent):
    waits = "touch $RUN/up; until [[ -e $RUN/stop ]]; do /bin/sleep 0.05; done; exit 75"
    (run / "ray.sub").write_text(waits)
    job = subprocess.Popen(
        ["bash", str(SCRIPT)], env=environment(run), stdout=subprocess.PIPE, text=True
    )
    while not (run / "up").exists():
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(sent)
    said = job.communicate(timeout=60)[0]
    assert said.count("asked to stop, after this step") == 1
    assert "to be continued: requeued" in said

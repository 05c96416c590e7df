"""job.sh alone: how an attempt ended, and what follows.

ray.sub is a line of shell here, and Slurm's commands are stubs; tests/real/slurm has a Slurm.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from slurm_here import called, stub

SCRIPTS = Path(__file__).parents[3] / "scripts" / "slurm"
RUNNING = "JobId=7 JobName=etr-0a JobState=RUNNING Reason=None Restarts={} PreemptTime=None"
ENDING = RUNNING.replace("RUNNING", "COMPLETING")  # by Slurm: what for is in the other fields
BY_SLURM = {
    "limit": ENDING.replace("Reason=None", "Reason=TimeLimit"),
    "preempted": ENDING.replace("PreemptTime=None", "PreemptTime=2026-01-01T00:10:00"),
    "cancelled": ENDING,
    "requeued": ENDING.replace("{}", "9"),
}
GRACE = RUNNING.replace("PreemptTime=None", "PreemptTime=2026-01-01T00:10:00")
# a requeue that is accepted ends the attempt: TERM to all of it before the answer, KILL after it
SCONTROL = """
case "$1 $2 $3" in
requeue*)
	[[ -s {0}/refusals ]] && {{ head -1 {0}/refusals >&2; sed -i 1d {0}/refusals; exit 1; }}
	trap '' TERM
	kill -TERM 0
	(exec >/dev/null 2>&1; /bin/sleep 1; kill -KILL 0) & ;;
"show node"*) echo "NodeName=n1 Gres=gpu:8" ;;
"show hostnames"*) echo n1 ;;
*"show job"*) cat {0}/facts ;;
esac
"""
SAVE = "save() { mkdir -p $CHECKPOINTS/step_$1; touch $CHECKPOINTS/step_$1/training_info.json; }; "


@pytest.fixture
def run(tmp_path):
    """A run's folder; no job of it waits, its node is good, and requeue is allowed."""
    for name in ("bin", "called", "run/logs"):
        (tmp_path / name).mkdir(parents=True)
    stub(tmp_path, "squeue", "")
    stub(tmp_path, "srun", "")
    stub(tmp_path, "sleep", "exec /bin/sleep 0.05")
    stub(tmp_path, "scontrol", SCONTROL.format(tmp_path))
    return tmp_path / "run"


def environment(run, restarts, **variables):
    """Of a job of one node."""
    own = {"RUN": run, "RAY_SUB": f"{run}/ray.sub", "SCRIPTS": SCRIPTS, "MAX_REQUEUES": 9}
    own |= {"CHECKPOINTS": f"{run}/kept", "RETRIES": 0, "STALLED": 0, "SLURM_JOB_ID": 7}
    own |= {"GPUS_PER_NODE": 8, "SLURM_JOB_NUM_NODES": 1, "SLURMD_NODENAME": "n1"}
    own |= {"SLURM_JOB_NAME": "etr-0a", "SLURM_JOB_NODELIST": "n1", "CONTAINER": "i", "MOUNTS": ""}
    own |= {"PATH": f"{run.parent}/bin{os.pathsep}{os.environ['PATH']}"}
    own |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    return os.environ | {name: str(value) for name, value in (own | variables).items()}


def begun(run, ray_sub, facts=RUNNING, restarts=0, **variables):
    """An attempt of which Slurm says `facts`; its log goes on in run/log, as sbatch's does."""
    (run / "ray.sub").write_text(SAVE + ray_sub)
    (run.parent / "facts").write_text(facts.format(restarts) + " ExcNodeList=n9\n")
    with (run / "log").open("a") as log:
        return subprocess.Popen(
            ["bash", str(SCRIPTS / "job.sh")],
            env=environment(run, restarts, **variables),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def attempt(run, ray_sub, facts=RUNNING, restarts=0, **variables):
    """The exit status; whether a requeue was asked for."""
    before = called(run.parent, "scontrol").count("requeue 7")
    status = ended(begun(run, ray_sub, facts, restarts, **variables))
    return status, called(run.parent, "scontrol").count("requeue 7") - before


def ended(job):
    """Its status; then Slurm's KILL for whatever is left of it."""
    try:
        return job.wait(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


def noted(run):
    """What the attempts ended with, as `attempts` has it: how, and the step saved."""
    lines = (run / "attempts").read_text().splitlines()
    return [tuple(line.split()[4:]) for line in lines if " start " not in line]


def test_ray_sub_starts_in_the_run_s_folder(run):
    says = 'echo "$SLURM_SUBMIT_DIR $BASE_LOG_DIR"; save 3; touch $RUN/finished'
    assert attempt(run, says) == (0, 0)
    assert f"{run} {run}/logs\n" in (run / "log").read_text()
    assert noted(run) == [("finished", "3")]
    start, end = (run / "attempts").read_text().splitlines()
    assert start.split()[0::2] == ["7", "1", "start"] and end.split()[3] == "8"


@pytest.mark.parametrize("facts", [RUNNING, GRACE, BY_SLURM["limit"]])
def test_what_was_saved_goes_on(run, facts):
    """Once requeued, it is over, whatever TERM Slurm sends; a restarted one appends to the log."""
    (run / "stop").touch()
    assert attempt(run, "[[ -e $RUN/stop ]] && exit 8; save 4; exit 75", facts) == (0, 1)
    assert attempt(run, "touch $RUN/finished", restarts=1) == (0, 0)
    assert noted(run) == [("saved", "4"), ("finished", "4")]
    log = (run / "log").read_text()
    assert log.count("requeued") == 1 and "not requeue" not in log
    assert log.index("attempt 7: saved, step 4") < log.index("attempt 7-1: finished, step 4")


@pytest.mark.parametrize("status", [0, 1, 15, 143])
@pytest.mark.parametrize("facts", [RUNNING, GRACE], ids=["alone", "preempted"])
def test_what_preemption_ends_is_requeued_and_what_fails_is_not(run, status, facts):
    """In its grace time Slurm ends the steps: ray.sub with 143, or what its children made of it.

    A status of 0 without the end of training is a failure: srun's where it started nothing.
    """
    preempted = facts == GRACE
    assert attempt(run, f"exit {status}", facts) == (0 if preempted else status or 1, preempted)
    assert noted(run) == [("preempted" if preempted else "failed", "0")]
    assert not (run / "finished").exists()


@pytest.mark.parametrize("how", BY_SLURM)
@pytest.mark.parametrize("hangs", [False, True])
def test_what_slurm_ends(run, how, hangs):
    """TERM to all processes of the job: a driver may end of it, or hang on."""
    waits = "trap '' TERM; " if hangs else ""
    job = begun(run, f"{waits}touch $RUN/up; while :; do /bin/sleep 0.05; done", BY_SLURM[how])
    while not (run / "up").exists():
        assert job.poll() is None
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGTERM)
    ended(job)
    assert noted(run) == [(how, "0")]
    goes_on = how in ("limit", "preempted")
    assert called(run.parent, "scontrol").count("requeue 7") == goes_on
    assert "asked to stop" not in (run / "log").read_text()


@pytest.mark.parametrize("how", ["preempted", "requeued"])
def test_what_slurm_ends_is_no_circle(run, how):
    for restarts in range(6):
        attempt(run, "exit 1", BY_SLURM[how].replace("=9", f"={restarts + 1}"), restarts)
    assert noted(run) == [(how, "0")] * 6


def test_a_limit_that_comes_before_every_save_is_a_circle(run):
    """Two attempts in a row; a step saved starts the count anew."""
    limit, statuses = BY_SLURM["limit"], []
    for restarts, save in enumerate((":", ":", "save 2", ":", ":")):
        statuses.append(attempt(run, f"{save}; exit 15", limit, restarts))
    assert statuses == [(0, 1)] * 4 + [(15, 0)]
    assert noted(run) == [("limit", step) for step in "00222"]
    assert "--time" in (run / "log").read_text()


def test_errors_are_retried_until_so_many_had_no_step_saved_between(run):
    statuses = []
    for restarts, save in enumerate((":", ":", "save 2", ":", ":")):
        statuses.append(attempt(run, f"{save}; exit 3", restarts=restarts, RETRIES=2))
    assert statuses == [(0, 1)] * 4 + [(3, 0)]
    assert attempt(run, "exit 3", restarts=9, RETRIES=2, SLURM_JOB_ID=8) == (3, 0)  # --max-requeues


def test_a_run_that_hangs_is_ended_and_goes_on(run):
    """A driver that never comes back; its stacks are asked for in ray.sub's container."""
    lines = "echo == Step {}/9 == >>$BASE_LOG_DIR/7-logs/ray-driver.log; "
    (run / "logs" / "7-logs").mkdir()
    hangs = f"{lines.format(1)}{lines.format(2)}save 2; while :; do /bin/sleep 0.1; done"
    assert attempt(run, hangs, STALLED=1) == (0, 1)
    assert noted(run) == [("stalled", "2")]
    stacks = [line for line in called(run.parent, "srun") if "stacks.sh" in line]
    assert len(stacks) == 1 and "--container-name=ray-head" in stacks[0]


@pytest.mark.long  # it waits
def test_a_driver_s_log_that_is_truncated_is_no_hang(run):
    """By logrotate's copytruncate after four steps; then each step is one in time."""
    log = "$BASE_LOG_DIR/7-logs/ray-driver.log"
    (run / "logs" / "7-logs").mkdir()
    first = f"for i in 1 2 3 4; do echo == Step $i/9 == >>{log}; done; /bin/sleep 0.5; : >{log}; "
    later = f"for i in 5 6 7; do /bin/sleep 1.5; echo == Step $i/9 == >>{log}; done; "
    assert attempt(run, f"{first}{later}touch $RUN/finished", STALLED=4) == (0, 0)


def test_a_hang_behind_a_truncated_log_is_found(run):
    log = "$BASE_LOG_DIR/7-logs/ray-driver.log"
    (run / "logs" / "7-logs").mkdir()
    steps = (
        f"for i in 1 2; do echo == Step $i/9 == >>{log}; done; save 2; /bin/sleep 0.5; : >{log}; "
    )
    assert attempt(run, f"{steps}while :; do /bin/sleep 0.1; done", STALLED=1) == (0, 1)
    assert noted(run) == [("stalled", "2")]


@pytest.mark.long  # it waits
def test_the_first_step_of_an_attempt_may_take_its_time(run):
    """It compiles; so does the start before it."""
    (run / "logs" / "7-logs").mkdir()
    first = "/bin/sleep 2; echo == Step 5/9 == >$BASE_LOG_DIR/7-logs/ray-driver.log; /bin/sleep 2"
    assert attempt(run, f"{first}; touch $RUN/finished", STALLED=1) == (0, 0)


def test_a_validation_is_no_hang(run):
    log = "$BASE_LOG_DIR/7-logs/ray-driver.log"
    (run / "logs" / "7-logs").mkdir()
    steps = f"for i in 1 2; do echo == Step $i/9 == >>{log}; done; "
    signs = ("Starting validation at step 2...", "Validation Results:", "Starting validation at 3")
    later = "".join(f"/bin/sleep 1.5; echo '{sign}' >>{log}; " for sign in signs)
    assert attempt(run, f"{steps}{later}touch $RUN/finished", STALLED=3) == (0, 0)


@pytest.mark.parametrize("how", ["finished", "failed"])
def test_a_controller_that_never_answers_holds_no_node(run, how):
    """Its commands hang; after `finished` none is asked."""
    ends = (SCRIPTS / "ends.sh").read_text()
    own = run / "scripts"
    shutil.copytree(SCRIPTS, own)
    (own / "ends.sh").write_text(ends.replace("=1800", "=1").replace("=60", "=0.3"))
    answered = run / "answered"
    for name in ("scontrol", "squeue"):
        stub(run.parent, name, f"/bin/sleep 20; touch {answered}")
    began = "touch $RUN/finished" if how == "finished" else "exit 3"
    status, _ = attempt(run, began, SCRIPTS=own)
    assert (status, [what for what, _ in noted(run)]) == (0 if how == "finished" else 3, [how])
    assert not answered.exists()  # nobody has waited for it
    asked = [line for line in called(run.parent, "scontrol") if "show job" in line]
    assert bool(asked) == (how == "failed")


def test_a_site_s_lines_are_no_nodes(run):
    stub(run.parent, "srun", "echo 'Welcome to cluster X'; echo 'n1: quota 80 %'")
    assert attempt(run, "touch $RUN/finished") == (0, 0)


def test_a_bad_node_is_left_out_beside_those_that_are(run):
    """After the requeue, in the moment before its TERM ends the attempt."""
    stub(run.parent, "srun", "echo 'Welcome to cluster X'; echo 'bad node n1: /tmp is full'")
    assert attempt(run, "touch $RUN/started", SLURM_JOB_NUM_NODES=2) == (0, 1)
    assert called(run.parent, "scontrol")[-1] == "update jobid=7 excnodelist=n9,n1"
    assert not (run / "started").exists() and noted(run) == [("nodes", "0")]
    assert "n1: /tmp is full" in (run / "log").read_text()


def test_one_node_after_another_is_bad(run):
    """It may be the nodes, or what all of them lack."""
    stub(run.parent, "srun", "echo 'bad node n1: cannot read the image'")
    statuses = [attempt(run, "", restarts=restarts) for restarts in range(3)]
    assert statuses == [(0, 1), (0, 1), (1, 0)] and noted(run) == [("nodes", "0")] * 3


def test_where_all_nodes_are_bad_it_is_not_the_nodes(run):
    stub(run.parent, "srun", "echo 'bad node n1: no GPU'; echo 'bad node n2: no GPU'")
    assert attempt(run, "touch $RUN/started", SLURM_JOB_NUM_NODES=2) == (1, 0)
    assert not (run / "started").exists()


def test_a_controller_that_is_away_is_asked_again(run):
    """And an answer that was lost on its way was still a yes."""
    away = "scontrol: error: Unable to contact slurm controller (connect failure)\n"
    (run.parent / "refusals").write_text(f"{away}{away}Job is pending execution for job 7\n")
    assert attempt(run, "save 1; exit 75") == (0, 3)
    assert (run / "log").read_text().count("requeued") == 1


def test_where_requeue_is_not_allowed_the_job_says_what_to_do(run):
    (run.parent / "refusals").write_text("Requested operation is presently disabled for job 7\n")
    assert attempt(run, "save 1; exit 75") == (75, 1)
    log = (run / "log").read_text()
    assert "presently disabled" in log and f"sbatch {run}/job.sh" in log and "--chain" in log


def test_a_finished_run_starts_nothing(run):
    (run / "finished").touch()
    assert attempt(run, "exit 8")[0] == 0


def test_a_stop_for_good_is_no_requeue(run):
    """Not even where Slurm had requeued it; submitted again it goes on."""
    stops = "echo for good >$RUN/stop; save 1; exit 75"
    assert attempt(run, stops) == (0, 0)
    assert noted(run) == [("stopped", "1")]
    assert attempt(run, "touch $RUN/started", restarts=1) == (0, 0)
    assert not (run / "started").exists()
    assert attempt(run, "touch $RUN/finished", SLURM_JOB_ID=8) == (0, 0)
    assert (run / "finished").exists()


def test_lost_checkpoints_end_the_job(run):
    """It would train the same steps again; submitted again, the user knows."""
    assert attempt(run, "save 4; exit 75") == (0, 1)
    (run / "kept").rename(run / "lost")
    assert attempt(run, "touch $RUN/started", restarts=1) == (1, 0)
    assert "step 4 was saved, but" in (run / "log").read_text()
    assert not (run / "started").exists()
    assert attempt(run, "touch $RUN/finished", SLURM_JOB_ID=8) == (0, 0)


def test_a_step_is_saved_when_it_is_whole(run):
    """As NeMo-RL counts, less what is being written, or is empty."""
    kept = run / "kept"
    for name in ("step_x", "tmp_step_9", "step_10", "step_9"):
        (kept / name).mkdir(parents=True)
        (kept / name / "training_info.json").touch()
    (kept / "step_99").mkdir()
    attempt(run, "exit 1")
    assert noted(run) == [("failed", "10")]


@pytest.mark.parametrize(("restarts", "starts", "requeues"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_requeues_are_counted(run, restarts, starts, requeues):
    """One is allowed: Slurm's own after a preemption count too."""
    ray_sub = "touch $RUN/started; exit 75"
    status, asked = attempt(run, ray_sub, restarts=restarts, MAX_REQUEUES=1)
    assert ((run / "started").exists(), asked) == (bool(starts), requeues)
    assert status == {0: 0, 1: 75, 2: 1}[restarts]
    over = f"restarted {restarts} times (--max-requeues): sbatch {run}/job.sh goes on"
    assert (over in (run / "log").read_text()) is not bool(requeues)


def test_tasks_of_an_array_would_write_one_run(run):
    assert attempt(run, "touch $RUN/started", SLURM_ARRAY_TASK_COUNT="2")[0] == 1
    assert not (run / "started").exists()
    assert attempt(run, "touch $RUN/finished", SLURM_ARRAY_TASK_COUNT="1")[0] == 0


def test_the_next_job_of_the_chain_goes_on(run):
    stub(run.parent, "squeue", "echo 8")
    assert attempt(run, "exit 75") == (0, 0)
    assert "the next job of the chain goes on" in (run / "log").read_text()
    assert "--name=etr-0a" in called(run.parent, "squeue")[0]


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_is_a_file_for_the_driver_and_ray_sub_lives(run, sent):
    waits = "touch $RUN/up; until [[ -e $RUN/stop ]]; do /bin/sleep 0.05; done; exit 75"
    job = begun(run, waits)
    while not (run / "up").exists():
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(sent)
    assert ended(job) == 0
    assert (run / "log").read_text().count("asked to stop, after this step") == 1
    assert noted(run) == [("saved", "0")]


GOOD = {
    "nvidia-smi": "for i in 1 2 3 4; do echo GPU $i: H100; done",
    "df": "[[ $* == *pcent* ]] && echo 94% || echo 4",
}


@pytest.mark.parametrize(
    ("command", "says", "wrong"),
    [
        ("df", "echo 94", ""),
        ("nvidia-smi", "echo GPU 0: H100", "nvidia-smi lists 1 GPUs of 4"),
        ("nvidia-smi", "echo NVIDIA-SMI has failed; exit 9", "nvidia-smi lists 0 GPUs of 4"),
        ("df", "[[ $* == *pcent* ]] && echo 95% || echo 4", "/tmp is filled to 95 %"),
        ("df", "[[ $* == *pcent* ]] && echo 1% || echo 3", "/dev/shm has 3 GiB free"),
    ],
)
def test_the_check_of_a_node(run, command, says, wrong):
    for name, script in (GOOD | {command: says}).items():
        stub(run.parent, name, script)
    said = node(run)
    assert said.startswith(f"bad node n1: {wrong}") if wrong else not said


def test_a_node_that_does_not_see_the_run_or_its_image(run):
    for name, script in GOOD.items():
        stub(run.parent, name, script)
    assert not node(run, CONTAINER=f"{SCRIPTS}/job.sh")
    assert node(run, CONTAINER="/nowhere.sqsh") == "bad node n1: cannot read /nowhere.sqsh\n"
    assert node(run, RUN="/nowhere") == "bad node n1: cannot write to /nowhere\n"


def node(run, **variables):
    """What node.sh prints."""
    variables = environment(run, 0, **{"GPUS_PER_NODE": 4, **variables})
    command = ["bash", str(SCRIPTS / "node.sh")]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout

"""`nemo-algos slurm status | tail | stop RUN`, and how their words go with configs."""

import os

import pytest
from slurm_here import called, folder, invoked, slurm, stub  # noqa: F401

from nemo_algos.slurm.batch import job_name

SHOW = """
case "$4" in
12) echo "JobId=12 JobState=RUNNING Reason=None Restarts=2 RunTime=00:10:02 TimeLimit=04:00:00 \
NodeList=n[1-2] Comment=a=b" ;;
13) echo "JobId=13 JobState=PENDING Reason=Dependency Restarts=0 RunTime=00:00:00 \
TimeLimit=04:00:00 NodeList=" ;;
esac
"""
STEP = "========================= Step {}/{} ========================="


@pytest.fixture
def run(here):
    """One that two jobs of Slurm's belong to."""
    assert slurm(here).status == 0
    stub(here, "squeue", "printf '13\\n12\\n'")
    stub(here, "scontrol", SHOW)
    stub(here, "scancel", "")
    return here / "runs" / "etr"


def driver_log(run, attempt, text, age):
    log = run / "logs" / f"{attempt}-logs" / "ray-driver.log"
    log.parent.mkdir()
    log.write_text(text)
    os.utime(log, (1e9 - age, 1e9 - age))


def test_status(here, run):
    """The newest log says the step, the folder what is saved, Slurm the rest."""
    asked = ["slurm", "status", "etr", "--out", f"{here}/runs"]
    assert invoked(*asked).out[0] == "etr: step -, saved 0"
    driver_log(run, "12", STEP.format(9, 100), age=50)
    driver_log(run, "12-1", f"{STEP.format(4, 100)}\n{STEP.format(5, 100)}\nend", age=10)
    for name in ("step_4", "step_3", "tmp_step_5"):
        (run / "checkpoints" / name).mkdir(parents=True)
    assert invoked(*asked) == (
        0,
        [
            "etr: step 5 of 100, saved 4",
            "  job 12 RUNNING, 2 restarts, 00:10:02 of 04:00:00 on n[1-2]",
            "  job 13 PENDING, 0 restarts, waits for Dependency",
        ],
        [],
    )
    name = f"--name={job_name(run)}"
    assert called(here, "squeue")[-1] == f"--noheader --me --format=%A {name}"


def test_status_of_a_run_without_jobs(here, run):
    """By its folder; the batch script's last line says why."""
    stub(here, "squeue", "")
    (run / "finished").touch()
    assert invoked("slurm", "status", str(run)).out[1] == "  no job in the queue"
    (run / "slurm-12.log").write_text("a\nto be continued: requeued\n")
    assert invoked("slurm", "status", str(run), str(run)).out == 2 * [
        "etr: step -, saved 0, finished",
        "  no job in the queue; slurm-12.log: to be continued: requeued",
    ]


def test_stop_cancels_every_job_of_the_run_alone(here, run):
    assert invoked("slurm", "stop", str(run)).out == ["etr: stopped 12 13"]
    assert called(here, "scancel") == ["12 13"]
    stub(here, "squeue", "")
    assert invoked("slurm", "stop", str(run)).out == ["etr: no job to stop"]
    assert called(here, "scancel") == ["12 13"]


def test_tail_follows_the_driver_or_the_batch_script(here, run, monkeypatch):
    followed = []
    monkeypatch.setattr(os, "execvp", lambda name, words: followed.append(words[-1]))
    said = invoked("slurm", "tail", str(run))
    assert said == (2, [], [f"{run} has no log yet: nemo-algos slurm status {run}"])
    (run / "slurm-12.log").touch()
    invoked("slurm", "tail", str(run))
    driver_log(run, "12", "", age=50)
    driver_log(run, "12-1", "", age=10)
    invoked("slurm", "tail", "etr", "--out", f"{here}/runs")
    assert followed == [f"{run}/slurm-12.log", f"{run}/logs/12-1-logs/ray-driver.log"]


@pytest.mark.parametrize("word", ["status", "tail", "stop"])
def test_what_is_no_run(here, run, word, monkeypatch):
    monkeypatch.setattr(os, "execvp", None)
    said = invoked("slurm", word, "ert", "--out", f"{here}/runs")
    assert said == (2, [], [f"ert: no run's folder, here or in {here}/runs"])
    assert invoked("slurm", word, f"{here}/nemo-rl").status == 2
    assert invoked("slurm", word).status == 2


def test_slurm_that_does_not_answer(here, run):
    stub(here, "squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    for word in ("status", "stop"):
        said = invoked("slurm", word, str(run))
        assert said.status == 2
        assert said.err == ["squeue: squeue: error: Unable to contact slurm controller"]


def test_words_and_configs(here, run, monkeypatch):
    """A path is a config, also of a word's name; options may come first."""
    monkeypatch.chdir(here)
    (here / "status").write_text((here / "etr.yaml").read_text())
    launch = f"--account a --image b:c --checkout {here}/nemo-rl --out {here}/runs".split()
    assert invoked("slurm", "./status", *launch).out == [f"sbatch {here}/runs/status/job.sh"]
    assert invoked("slurm", *launch, "etr.yaml").out == [f"sbatch {run}/job.sh"]
    assert "--max-requeues" in "".join(invoked("slurm", "--help").out)
    assert "status | tail | stop RUN" in "".join(invoked("slurm", "--help").out)
    assert invoked("slurm").status == 2

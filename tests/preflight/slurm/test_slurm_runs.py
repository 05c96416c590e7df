"""`nemo-algos slurm status | tail | stop RUN`, and how their words go with configs."""

import os
import time
from types import SimpleNamespace

import pytest
from says import Says
from slurm_here import (  # noqa: F401
    LAUNCH,
    called,
    folder,
    invoked,
    slurm,
    stub,
)

from nemo_algos.config import load
from nemo_algos.preflight.slurm import runs
from nemo_algos.preflight.slurm.batch import job_name

STEP = "========================= Step {}/{} ========================="
FIELDS = (20, 300, 64, 24, 64, 300, 12, 24, 24)  # squeue's, of a fixed width


@pytest.fixture
def run(here):
    """One that two jobs of Slurm's belong to."""
    assert slurm(here).status == 0
    run = here / "runs" / "etr"
    queue(here, run, [RUNNING, PENDING])
    stub(here, "scancel", "")
    stub(here, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    return run


RUNNING = ("12", "RUNNING", "None", "n[1-2]", "2", "10:02", "4:00:00")
PENDING = ("13", "PENDING", "Dependency", "", "0", "0:00", "4:00:00")
NODE_FAIL = ("13", "NODE_FAIL", "None", "n1", "0", "3:00", "4:00:00")


def queue(here, run, jobs):
    """What squeue says of the run's jobs: each field padded by bytes, then its separator."""
    lines = []
    for number, state, *rest in jobs:
        words = [number, job_name(run), "someone", state, *rest]
        pairs = zip(words, FIELDS, strict=True)
        lines.append(b"".join(os.fsencode(word).ljust(width) + b"|" for word, width in pairs))
    (here / "queue").write_bytes(b"".join(line + b"\n" for line in lines))
    stub(here, "squeue", f"cat {here}/queue")


def driver_log(run, attempt, text, age):
    log = run / "logs" / f"{attempt}-logs" / "ray-driver.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    os.utime(log, (NOW - age, NOW - age))


NOW = 1_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(runs, "time", SimpleNamespace(sleep=lambda seconds: None))


def noted(run, *lines):
    """As job.sh does: 2 nodes of 8 GPUs."""
    words = (f"{attempt} {NOW - age} 2 8 {what} 0\n" for attempt, age, what in lines)
    (run / "attempts").write_text("".join(words))


def test_status(here, run):
    """The newest log says the step, the folder what is saved and spent, Slurm the rest."""
    asked = ["slurm", "status", "etr", "--out", f"{here}/runs"]
    assert invoked(*asked).out[0] == "etr: step -, saved 0, 0.0 GPU-hours spent"
    driver_log(run, "12", STEP.format(9, 100), age=500)
    driver_log(run, "12-1", f"{STEP.format(4, 100)}\n{STEP.format(5, 100)}\nend", age=300)
    noted(run, ("12", 7200, "start"), ("12", 3600, "saved"), ("12-1", 1800, "start"))
    for name in ("step_4", "step_3", "tmp_step_5"):
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / "training_info.json").touch()
    (run / "checkpoints" / "step_99" / "policy").mkdir(parents=True)
    title = "etr: step 5 of 100 (last line 5 min ago), saved 4, 24.0 GPU-hours spent"
    jobs = ["job 12 RUNNING, 2 restarts, 10:02 of 4:00:00 on n[1-2]"]
    jobs += ["job 13 PENDING, 0 restarts, waits for Dependency"]
    assert invoked(*asked) == (0, [title, *(f"  {job}" for job in jobs)], [])


def test_an_attempt_that_slurm_ended_unseen_lasted_until_its_drivers_last_word(here, run):
    queue(here, run, [PENDING])
    driver_log(run, "12", "", age=3600)
    noted(run, ("11", 9000, "start"), ("12", 7200, "start"))
    assert invoked("slurm", "status", str(run)).out[0].endswith(", 16.0 GPU-hours spent")


def test_status_of_all_runs_is_one_question(here, run):
    """Of all users' jobs; what is no run is passed over."""
    assert slurm(here, "--name other").status == 0
    (here / "runs" / "notes").mkdir()
    before = len(called(here, "squeue"))
    said = invoked("slurm", "status", "--out", f"{here}/runs")
    assert [line.split(":")[0] for line in said.out if line[0] != " "] == ["etr", "other"]
    (asked,) = called(here, "squeue")[before:]
    assert f"--name={job_name(run)},{job_name(here / 'runs' / 'other')}" in asked
    assert "--me" not in asked and "--user" not in asked
    assert invoked("slurm", "status", "--out", f"{here}/none").status == 2


@pytest.mark.parametrize(
    ("what", "jobs", "says"),
    [
        ("finished", [], "complete"),
        ("stopped", [], "saved"),
        ("cancelled", [NODE_FAIL], "cancelled"),
        ("failed", [], "ray-driver.log ValueError:"),
        ("limit", [], "slurm-12.log 20"),
        ("start", [NODE_FAIL], "NODE_FAIL"),
        ("start", [], "Slurm"),
        (None, [], "Slurm"),
        (None, [("13", "FAILED", "JobLaunchFailure", *NODE_FAIL[3:])], "JobLaunchFailure"),
    ],
)
def test_status_says_how_a_run_ended(here, run, what, jobs, says):
    """By job.sh's word, else Slurm's; the reason is the driver's or job.sh's last line."""
    queue(here, run, jobs)
    driver_log(run, "12", "ValueError: no step was saved\n\n", age=10)
    (run / "slurm-12.log").write_text(
        "restarted 20 times\n+ srun x\nsrun: error: n1\nslurmstepd: x\n"
    )
    if what:
        noted(run, ("12", 60, "start"), *([] if what == "start" else [("12", 30, what)]))
    assert invoked("slurm", "status", str(run)).out[1] == Says(says)


def test_a_state_that_only_the_accounting_remembers(here, run):
    queue(here, run, [])
    stub(here, "sacct", f"echo '{job_name(run)}|CANCELLED by 0'; echo '{job_name(run)}|TIMEOUT'")
    assert "TIMEOUT" in invoked("slurm", "status", str(run)).out[1]
    assert len(called(here, "sacct")) == 1


def test_stop_cancels_every_job_of_the_run_alone(here, run):
    assert invoked("slurm", "stop", str(run)).out == ["etr: stopped 12 13"]
    assert called(here, "scancel") == ["12 13"]
    queue(here, run, [NODE_FAIL])
    assert invoked("slurm", "stop", str(run)).out == [Says("etr: job")]
    assert called(here, "scancel") == ["12 13"] and not (run / "stop").exists()


def test_stop_and_save_cancels_what_waits_and_tells_what_runs(here, run):
    """By a file that has words: job.sh does not requeue then."""
    said = invoked("slurm", "stop", "--save", str(run)).out
    assert said == [Says("etr: 12 save 13")]
    assert called(here, "scancel") == ["13"] and (run / "stop").read_text()


def test_tail_follows_from_attempt_to_attempt_until_no_job_is_left(here, run, monkeypatch):
    """The batch script's log before the first; the last lines at first, then what is new."""
    (run / "slurm-12.log").write_text("waiting\n")
    seconds = []

    def sleep(length):
        """What happens meanwhile."""
        seconds.append(length)
        if len(seconds) == 1:
            driver_log(run, "12", "x" * 5000 + "\nlast\n", age=50)
        elif len(seconds) == runs.LOOK + 1:
            with (run / "logs" / "12-logs" / "ray-driver.log").open("a") as log:
                log.write("new\n")
        elif len(seconds) == 2 * runs.LOOK:
            driver_log(run, "12-1", "again\n", age=-1e9)
            queue(here, run, [])

    monkeypatch.setattr(runs, "time", SimpleNamespace(sleep=sleep))
    said = invoked("slurm", "tail", "etr", "--out", f"{here}/runs")
    assert said.status == 0 and len(seconds) == 2 * runs.LOOK + 1
    assert [line[-5:] for line in said.out] == ["iting", "xxxxx", "last", "new", "again"]
    assert sum(map(len, said.out)) < runs.LAST + 100
    assert [line.split("/")[-2] for line in said.err] == ["etr", "12-logs", "12-1-logs"]


def test_tail_of_a_run_that_never_began(here, run):
    queue(here, run, [])
    said = invoked("slurm", "tail", str(run))
    assert said.status == 2 and said.err[0] == Says("log")


@pytest.mark.parametrize("word", ["status", "tail", "stop"])
def test_what_is_no_run(here, run, word):
    said = invoked("slurm", word, "ert", "--out", f"{here}/runs")
    assert (said.status, said.out) == (2, []) and said.err[0] == Says("ert")
    assert invoked("slurm", word, f"{here}/nemo-rl").status == 2
    assert word == "status" or invoked("slurm", word).status == 2


def test_slurm_that_does_not_answer(here, run):
    stub(here, "squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    for word in ("status", "stop"):
        said = invoked("slurm", word, str(run))
        assert said == (1, [], ["squeue: Unable to contact slurm controller"])


@pytest.mark.parametrize("command", ["squeue", "sacct", "scancel"])
def test_slurm_that_hangs(here, run, monkeypatch, command):
    """It is said by the command's name; the accounting is not needed."""
    monkeypatch.setattr(runs, "TIMEOUT", 0.5)
    queue(here, run, [] if command == "sacct" else [PENDING])
    stub(here, command, "exec /bin/sleep 60")
    said = invoked("slurm", "stop" if command == "scancel" else "status", str(run))
    if command == "sacct":
        assert said.status == 0 and len(said.out) == 2
    else:
        assert said == (1, [], [Says(f"{command} 0.5")])


@pytest.mark.parametrize("name", ["größe", "数学", "\udce9t\udce9"], ids=ascii)
def test_runs_whose_names_are_not_ascii(here, run, name):
    """squeue pads its columns by bytes; a folder's name may be of any."""
    odd = here / "runs" / name
    run.rename(odd)
    queue(here, odd, [RUNNING, PENDING])
    status = invoked("slurm", "status", "--out", f"{here}/runs").out
    assert [line.split()[:3] for line in status[1:]] == [
        ["job", "12", "RUNNING,"],
        ["job", "13", "PENDING,"],
    ]
    assert invoked("slurm", "stop", "--save", str(odd)).out == [Says("12 13")]
    assert called(here, "scancel") == ["13"]


def test_an_old_squeue_without_separators(here, run):
    stub(here, "squeue", "echo '12   etr'")
    said = invoked("slurm", "status", str(run))
    assert (said.status, said.err) == (1, [Says("squeue: --Format")])


BAD = [  # a folder's file, and what stands in it
    ("attempts", b"12 5 1 8 begun 0\n"),
    ("attempts", b"x y z a start 0\n"),
    ("attempts", b"5 1e9 1 8 start 0\n"),
    ("attempts", b"\xff 1 1 1 x 0\n"),
    ("job.sh", b"export CHECKPOINTS='/x\n"),
    ("job.sh", b'export CHECKPOINTS="\xe9\n'),
]


@pytest.mark.parametrize(("file", "text"), BAD)
def test_one_bad_folder_is_one_line(here, run, file, text):
    """Which names the file; the other runs are shown."""
    assert slurm(here, "--name other").status == 0
    (run / file).write_bytes(text)
    said = invoked("slurm", "status", "--out", f"{here}/runs")
    bad, other = (line for line in said.out if line[0] != " ")
    assert bad.startswith("etr: ") and str(run / file) in bad and other.startswith("other: step")
    assert said.status == 1


def test_bytes_that_are_no_text_and_a_torn_line_do_no_harm(here, run):
    """A path of bytes, and the line in whose middle the power failed."""
    (run / "job.sh").write_bytes(b"# \xe9\nexport CHECKPOINTS=/x/\xe9\n")
    (run / "attempts").write_bytes(b"12 5 1 8 start 0\n12 9 1")
    said = invoked("slurm", "status", str(run))
    assert said.status == 0 and "saved 0" in said.out[0]


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


RECIPE = "qwen3-32b-4n8g-tp4pp4"


def test_a_sweep_over_the_methods(here):
    launch = ["slurm", f"recipes/{RECIPE}.yaml", *LAUNCH.format(here).split()]
    said = invoked(*launch, "--sweep", "method.name=etr,quatro,erpo,apmpo")
    assert said.status == 0, said
    runs = sorted(path for path in (here / "runs").iterdir() if path.is_dir())
    configs = [load(run / "config.yaml") for run in runs]
    names = {config["method"]["name"]: config["logger"]["wandb"]["name"] for config in configs}
    assert names == {method: f"{method}-{RECIPE}" for method in ("etr", "quatro", "erpo", "apmpo")}

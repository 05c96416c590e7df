"""What Slurm has of the options: they win over SBATCH_*; what it refuses is said."""

import json
import re
import shlex

import image
import pytest
from cluster import HERE, ROOT, Cluster
from runs import Run

SET = {
    "SBATCH_ACCOUNT": "team",
    "SBATCH_PARTITION": "high",
    "SBATCH_TIMELIMIT": "0:01:00",
    "SBATCH_JOB_NAME": "other",
    "SBATCH_NO_REQUEUE": "1",
    "SBATCH_SIGNAL": "B:USR2@30",
    "SBATCH_OPEN_MODE": "truncate",
    "SBATCH_EXPORT": "NONE",
    "SBATCH_ARRAY_INX": "0-1",
    "SBATCH_WAIT": "1",
}


@pytest.mark.smoke
def test_the_options_win_over_the_environment(cluster: Cluster, run: Run) -> None:
    job = run.submit("--time 3:00:00 --nodes 2 grpo.max_num_steps=2", HF_HOME="/x y", **SET)
    assert run.ended() == ("COMPLETED", "0:0", 0)
    (found,) = cluster.tasks(job)  # no array
    names = ("Account", "Partition", "TimeLimit", "Requeue", "NumNodes")
    assert [found[name] for name in names] == ["a", "batch", "03:00:00", "1", "2"]
    assert found["JobName"].startswith(run.name)
    assert found["StdOut"] == f"/srv/user/runs/{run.name}/slurm-{job}.log"
    shown = (run.folder / "environment").read_text()
    assert "HF_HOME=/x y\n" in shown


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--account nobody", "Invalid account"),
        ("--partition nowhere", "nowhere"),
        ("--partition short", "--time"),
    ],
)
def test_what_slurm_refuses_is_said(run: Run, line: str, says: str) -> None:
    """Once, and nothing of the run is left."""
    done = run.command(f"{line} --submit")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and done.stderr.count("sbatch: ") == 0
    assert not run.folder.exists()


COMMENT = """{"APS": {"resume": "don't #1"}}"""


def test_a_comment_has_quotes_and_blanks(cluster: Cluster, run: Run) -> None:
    """On sbatch's command line, and in the script where that is submitted by hand."""
    option = shlex.quote(f"--sbatch=--comment={COMMENT}")
    run.submit(f"{option} --sbatch=--hold grpo.max_num_steps=2")
    run.resubmit()
    for job in run.jobs:
        assert f"Comment={COMMENT} " in cluster.root("scontrol", "-o", "show", "job", str(job))


def test_the_gpus_of_the_partition_are_the_runs(run: Run) -> None:
    """ray.sub would end every job that does not claim all GPUs of its nodes."""
    done = run.command("--gpus-per-node 4 --submit")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(r"cluster\.gpus_per_node: .*4.*8", done.stderr)


RECIPES = sorted(p.name for p in (ROOT / "examples" / "configs" / "recipes").glob("*.yaml"))


def test_slurm_would_take_every_recipe(cluster: Cluster) -> None:
    """`sbatch --test-only`: a partition of 128 nodes of 8 GPUs would."""
    image.bare_checkout(cluster.home / "main", "exit 1")
    done = cluster.user(f"python {HERE / 'all_recipes.py'} {' '.join(RECIPES)}")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert set(answers) == set(RECIPES) and len(RECIPES) >= 27
    assert not {name: said for name, said in answers.items() if "to start at" not in said}

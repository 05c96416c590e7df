"""How a run ends that Slurm, a node or its user ends; tests/preflight/slurm has the others.

The last one is by NeMo-RL's ray.sub as it is, with a Ray of two nodes.
"""

import image
import pytest
from cluster import HERE, NODES, Cluster, until
from runs import Run


def test_cancelled_is_cancelled(cluster: Cluster, run: Run) -> None:
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    assert cluster.user(f"scancel {job}").returncode == 0
    state, _, restarts = run.ended()
    assert (state, restarts) == ("CANCELLED", 0)
    assert run.ends() == ["cancelled"] and not run.finished


def test_a_run_that_hangs_is_restarted_with_its_stacks_saved(run: Run) -> None:
    line = "--stalled 1 grpo.max_num_steps=5 checkpointing.save_period=2"
    assert run.command(line).returncode == 0
    script = run.folder / "job.sh"
    assert "export STALLED=60\n" in script.read_text()
    script.write_text(script.read_text().replace("export STALLED=60\n", "export STALLED=3\n"))
    job = run.resubmit(HANG_AT="3")
    assert run.ended() == ("COMPLETED", "0:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (5, 1)]
    assert run.ends() == ["stalled", "finished"]
    (stacks,) = (run.folder / "logs" / f"{job}-logs").glob("stacks-*.log")
    assert "program.py" in stacks.read_text()


SMI = """#!/bin/bash
[[ ! $SLURM_RESTART_COUNT && $SLURM_NODEID == 1 ]] && hostname >~/bad
for ((gpu = 0; gpu < 8; gpu++)); do
	[[ $gpu == 7 && $(hostname) == $(cat ~/bad) ]] || echo "GPU $gpu: H100"
done
"""


def test_a_bad_node_is_left_out(cluster: Cluster, run: Run) -> None:
    """Its nvidia-smi has lost a GPU: nothing is trained on it."""
    smi = cluster.home / "smi" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    path = f"/srv/user/smi:{cluster.path}"
    job = run.submit("--nodes 2 --sbatch=--exclude=n4 grpo.max_num_steps=2", PATH=path)
    state, _, restarts = run.ended()
    assert state == "COMPLETED" and restarts in (1, 2)  # 2: KILL came before the node was left out
    bad = (cluster.home / "bad").read_text().strip()
    assert set(cluster.nodes(job)) == set(NODES) - {bad}
    assert set(cluster.job(job)["ExcNodeList"].split(",")) == {bad, "n4"}
    assert run.ends() == ["nodes"] * restarts + ["finished"]
    assert run.steps() == [(1, 0), (2, 0)]
    assert f"{bad}: nvidia-smi lists 7 GPUs of 8" in run.log()


def test_a_controller_that_is_away_is_waited_for(cluster: Cluster, run: Run) -> None:
    job = run.submit("grpo.max_num_steps=5", HOLD_AT="3")
    run.trained(3)
    with cluster.away():
        (run.folder / "stop").touch()
        driver = run.folder / "logs" / f"{job}-logs" / "ray-driver.log"
        until(lambda: "exit 75" in driver.read_text(), "not saved")
        assert cluster.user("squeue").returncode  # it is away when job.sh asks
    assert run.ended() == ("COMPLETED", "0:0", 1)
    assert run.ends() == ["saved", "finished"]
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_stop_and_save_ends_the_run_for_good(cluster: Cluster, run: Run) -> None:
    """Its chain too; to submit it again goes on."""
    run.submit("--chain 2 grpo.max_num_steps=5", HOLD_AT="3")
    first, second = run.jobs
    run.trained(3)
    done = cluster.user(f"nemo-algos slurm stop --save runs/{run.name}")
    assert (done.returncode, done.stderr) == (0, "")
    assert run.ended(second)[0] == "CANCELLED"
    assert run.ended(first) == ("COMPLETED", "0:0", 0)
    assert run.ends() == ["stopped"] and not run.finished
    assert run.ended(run.resubmit()) == ("COMPLETED", "0:0", 0)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_a_crashed_node_is_replaced(cluster: Cluster, run: Run) -> None:
    line = "--nodes 2 grpo.max_num_steps=5 checkpointing.save_period=2"
    job = run.submit(line, HOLD_AT="3")
    run.trained(3)
    before = cluster.nodes(job)
    cluster.crash(before[1])
    try:
        assert run.ended() == ("COMPLETED", "0:0", 1)
        assert set(cluster.nodes(job)) == set(NODES) - {before[1]}
    finally:
        cluster.start_node(before[1])
        until(lambda: cluster.states() == {"idle": 3}, "the node did not come back")
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (5, 1)]


@pytest.mark.smoke
def test_what_the_signal_and_what_the_limit_ends_goes_on(run: Run) -> None:
    """At once, in a minute: one stops and saves when it is signalled, the other one hangs."""
    late = run.beside(f"{run.name}-late")
    assert late.command("grpo.max_num_steps=5 checkpointing.save_period=2").returncode == 0
    ends = late.resubmit("--time 1", HANG_AT="3")
    told = run.submit("--time 0:01:30 --margin 1 grpo.max_num_steps=5", HOLD_AT="3")
    assert run.ended(told, 240) == ("COMPLETED", "0:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    assert run.ends() == ["saved", "finished"]
    assert late.ended(ends, 240) == ("COMPLETED", "0:0", 1)
    assert late.steps() == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (5, 1)]
    assert late.ends() == ["limit", "finished"]
    assert run.log().count("requeued") == late.log().count("requeued") == 1
    assert "does not requeue" not in run.log() + late.log()


OPTIONS = f"--nodes 2 --checkout /srv/nemo-rl --image ray.sqsh --program {HERE / 'ray_program.py'}"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}  # Ray's own choice, of a head alone


@pytest.mark.skipif(image.checkout.home() is None, reason="no clone of NeMo-RL here")
def test_a_signalled_job_saves_is_requeued_and_resumes(cluster: Cluster, run: Run) -> None:
    image.install(cluster.folder / "ray", image.RAY)
    job = run.submit(OPTIONS, **TOKEN)
    run.trained(3, 900)
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    assert run.ended(seconds=900) == ("COMPLETED", "0:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    nodes = [line.split()[2] for line in (run.folder / "steps.txt").read_text().splitlines()]
    assert nodes == ["2"] * 5
    assert {p.name for p in (run.folder / "checkpoints").iterdir()} == {"step_3", "step_5"}
    assert run.finished
    logs = [run.folder / "logs" / f"{job}{n}-logs" / "ray-driver.log" for n in ("", "-1")]
    assert ["stopped early" in log.read_text() for log in logs] == [True, False]

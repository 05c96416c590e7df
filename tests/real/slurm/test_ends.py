"""How a run ends that Slurm, a node or its user ends; tests/preflight/slurm has the others."""

from cluster import NODES, Cluster, until
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

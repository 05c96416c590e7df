"""A node that dies: Slurm requeues, the run goes on with another."""

from cluster import NODES, Cluster, until
from runs import Run


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

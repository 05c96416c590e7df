"""Runs that could be taken for one another."""

from cluster import Cluster
from runs import Run


def test_two_runs_of_one_name_never_meet(cluster: Cluster, run: Run) -> None:
    """Each is signalled while the other waits or runs; each goes on by itself."""
    other = run.beside(run.name, out="elsewhere")
    for one in (run, other):
        one.submit("--nodes 2 grpo.max_num_steps=5", HOLD_AT="3")
    for one in (run, other):  # two nodes each, of three: the second waits
        one.trained(3)
        assert cluster.user(f"scancel --batch --signal=USR1 {one.jobs[0]}").returncode == 0
    for one in (run, other):
        assert one.ended() == ("COMPLETED", "0:0", 1)
        assert one.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
        assert one.finished

"""The time limit: the signal before it, and Slurm's end where the signal came too late."""

import pytest
from runs import Run


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

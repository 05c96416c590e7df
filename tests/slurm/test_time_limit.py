"""The signal before the time limit: saved, requeued, resumed."""

import pytest
from runs import Run


@pytest.mark.smoke
def test_slurm_signals_before_the_limit_and_no_step_is_trained_twice(run: Run) -> None:
    job = run.submit("--time 0:01:30 --margin 1 grpo.max_num_steps=5", HOLD_AT="3")
    assert run.ended(job, 240) == ("COMPLETED", "0:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    assert run.finished

"""At r = 1 every clipped method is GRPO: one update per batch makes them inert."""

import pytest
from batches import close, make, on_policy, run

from nemo_algos.algorithms.riders.loss_config import LossConfig


@pytest.mark.parametrize("std", ["sample", "population", "none"])
@pytest.mark.parametrize("name", ["etr", "gspo", "gmpo", "apmpo"])
def test_gradient_and_value_are_grpos(name, std):
    batch = on_policy(make())
    want = run({"name": "grpo", "advantage_std": std}, batch, LossConfig())
    got = run({"name": name, "advantage_std": std}, batch, LossConfig())
    assert float(want.grad.abs().max()) > 0.01
    close(got.grad, want.grad)
    close(got.value, want.value)


@pytest.mark.parametrize("name", ["etr", "gspo", "gmpo", "apmpo"])
def test_they_differ_off_policy(name):
    batch = make(large=False)
    want = run({"name": "grpo", "advantage_std": "population"}, batch, LossConfig())
    got = run({"name": name, "advantage_std": "population"}, batch, LossConfig())
    assert float((got.grad - want.grad).abs().max()) > 1e-4


def test_cispo_on_policy_is_grpo_in_token_mean():
    batch = on_policy(make())
    want = run({"name": "grpo", "aggregation": "token"}, batch, LossConfig())
    close(run("cispo", batch, LossConfig()).grad, want.grad)


def test_gpg_has_the_gradient_of_log_pi():
    batch = make()
    signals_of_grpo = {"name": "grpo", "advantage_std": "none", "aggregation": "token"}
    want = run(signals_of_grpo, on_policy(batch), LossConfig())
    close(run("gpg", batch, LossConfig()).grad, want.grad)

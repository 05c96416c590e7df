"""The optimizer and NeMo-RL's list of schedulers: rates by step, and what ends training."""

import math

import pytest
import torch
import trainers
from trainers import weights

from nemo_algos.engines.local import evaluation
from nemo_algos.engines.local.schema import TorchClass
from nemo_algos.engines.local.updates import rehearse


def component(name, **kwargs):
    return {"name": f"torch.optim.lr_scheduler.{name}", "kwargs": kwargs}


WARM = component("LinearLR", start_factor=0.2, end_factor=1.0, total_iters=4)
HALVE = component("ExponentialLR", gamma=0.5)


@pytest.mark.parametrize(
    ("scheduler", "factors"),
    [
        ([], [1, 1, 1, 1, 1]),
        ([HALVE], [1, 0.5, 0.25, 0.125, 0.0625]),
        ([WARM, HALVE, {"milestones": [2]}], [0.2, 0.4, 1, 0.5, 0.25]),
        (
            [
                WARM,
                HALVE,
                component("ConstantLR", factor=0.3, total_iters=9),
                {"milestones": [1, 3]},
            ],
            [0.2, 1, 0.5, 0.3, 0.3],
        ),
    ],
)
def test_schedulers_take_over_at_their_milestones_and_step_once_a_batch(scheduler, factors):
    made = trainers.trainer(scheduler=scheduler)
    _, rates = trainers.counted(made)
    logged = [made.step()["lr"] for _ in factors]
    want = [0.02 * f for f in factors]
    assert rates == pytest.approx([rate for rate in want for _ in range(2)])
    assert logged == pytest.approx(want)  # the rate of that step, not of the next


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("optimizer", {"name": "torch.optim.AdamWW"}),
        ("optimizer", {"name": "torch.optimum.AdamW"}),
        ("optimizer", {"name": "AdamW"}),
        ("optimizer", {"name": "torch.optim.AdamW", "kwargs": {"rate": 1}}),
        ("optimizer", {"name": "torch.optim.AdamW", "kwargs": {"lr": -1}}),
        ("scheduler", [component("NoLR")]),
        ("scheduler", [component("StepLR", size=3)]),
        ("scheduler", [WARM, HALVE]),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_an_error_that_names_its_key(key, wrong):
    with pytest.raises(ValueError, match=rf"^policy\.{key}"):
        trainers.trainer(**{key: wrong})


def test_a_gradient_that_is_not_finite_is_an_error_and_no_update():
    made = trainers.trainer()
    made.policy.model.norm.weight.register_hook(lambda grad: grad * math.inf)
    before = weights(made)
    with pytest.raises(FloatingPointError, match="gradient"):
        made.step()
    assert torch.equal(weights(made), before)


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_weights_that_give_no_log_probs_end_training_and_evaluation(rate):
    """A gradient would not tell: all responses are wrong alike, so there is none."""
    made = trainers.trainer()
    with torch.no_grad():
        for parameter in made.policy.model.parameters():
            parameter.mul_(rate)
    before = weights(made)
    with pytest.raises(FloatingPointError, match="not finite"):
        made.step()
    assert torch.equal(weights(made).nan_to_num(), before.nan_to_num()) and made.step_number == 0
    with pytest.raises(FloatingPointError, match="not finite"):
        evaluation.sample(made.policy, made.task, 2, 2, 0)


def test_other_rates_count_as_if_they_had_been_there_from_the_start():
    """After a resume with twice the rate, a step has twice the rate that its number has."""
    first, then = scheduled(0.02), scheduled(0.04)
    before = [first.step()["lr"] for _ in range(3)]
    then.load(first.state())
    after = [then.step()["lr"] for _ in range(3)]
    whole = [0.02 * (1 / 3 + 2 / 3 * step / 10) for step in range(6)]
    assert before == pytest.approx(whole[:3])
    assert after == pytest.approx([2 * rate for rate in whole[3:]])


def scheduled(lr):
    optimizer = {"name": "torch.optim.SGD", "kwargs": {"lr": lr}}
    scheduler = [{"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"total_iters": 10}}]
    return trainers.trainer(optimizer=optimizer, scheduler=scheduler)


@pytest.mark.parametrize(("rate", "refused"), [(0.0, True), (1e-12, False)])
def test_a_rate_of_0_trains_nothing_and_is_refused(rate, refused):
    optimizer = TorchClass(name="torch.optim.SGD", kwargs={"lr": rate})
    paths = [finding.path for finding in rehearse(optimizer, [])]
    assert paths == ["policy.optimizer.kwargs.lr"] * refused

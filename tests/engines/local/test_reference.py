"""The reference policy: built where one is needed, frozen, and what the penalty pulls to."""

import io

import pytest
import torch
import trainers
from rich.console import Console
from trainers import update, weights

from nemo_algos.engines.data.schema import DataSection
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.build import build_trainer

KL = "loss_fn.reference_policy_kl_penalty=0.05"


@pytest.mark.parametrize(
    ("method", "more", "needed"),
    [("grpo", [], False), ("quatro", [], False), ("grpo", [KL], True), ("erpo", [], True)],
)
def test_a_reference_only_where_one_is_needed_and_it_stays(
    monkeypatch, tmp_path, method, more, needed
):
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    made = build_trainer(
        *trainers.checked(*more, method=method, optimizer=trainers.ADAM),
        Console(file=io.StringIO()),
    )
    assert (made.reference is not None) == needed
    if made.reference is None:
        return
    made.task = trainers.MadeUp(DataSection(), 0)
    start = weights(made)
    frozen = [p.clone() for p in made.reference.__self__.model.parameters()]
    assert torch.equal(torch.cat([p.flatten() for p in frozen]), start)
    assert not any(p.requires_grad for p in made.reference.__self__.model.parameters())
    first, second = made.step()["kl/ref"], made.step()["kl/ref"]
    assert 0 < first < 1e-2 < second and not torch.equal(weights(made), start)
    for parameter, before in zip(made.reference.__self__.model.parameters(), frozen, strict=True):
        assert torch.equal(parameter, before) and parameter.grad is None


def test_the_penalty_pulls_to_the_reference():
    task = trainers.MadeUp(DataSection(), 0)
    task.mixed = 99  # every group is flat: nothing but the penalty
    settings = {"method": "grpo", "steps": 1, "task": task}
    _, same = update(KL, reference=trainers.policy(), **settings)
    moved, other = update(KL, reference=trainers.policy(seed=1), **settings)
    assert same["kl/ref"] < 1e-6 < other["kl/ref"] and same["grad_norm"] < 1e-5
    assert moved.norm() > 1e-3 and other["kl_loss"] > 0
    still, _ = update(**settings)
    assert not still.any()

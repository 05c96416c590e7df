"""The reference policy: built where one is needed, and frozen."""

import io

import pytest
import torch
import trainers
from rich.console import Console
from trainers import weights

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

"""`from nemo_algos import ...`: no torch until used, lists taken, one call equal to two halves."""

import ast
from pathlib import Path

import pytest
import torch
from batches import KL, every_method, make

import nemo_algos
from nemo_algos import (
    METHODS,
    ClipParams,
    ConfigError,
    Counts,
    Method,
    Params,
    Rollouts,
    batch_loss,
    build,
    policy_loss,
)

PER_TOKEN = [[-0.5, -1.0], [-0.25, -2.0]]


def test_every_name_is_there_and_no_other():
    homes = {name for names in nemo_algos._HOMES.values() for name in names}
    assert homes == set(nemo_algos.__all__) <= set(dir(nemo_algos))
    for name in nemo_algos.__all__:
        assert getattr(nemo_algos, name).__class__ is not type(nemo_algos), name
    with pytest.raises(AttributeError, match="'policy_lost'"):
        nemo_algos.policy_lost  # noqa: B018
    with pytest.raises(ImportError, match="'policy_lost'"):
        exec("from nemo_algos import policy_lost")


@every_method
def test_one_call_is_its_two_halves_to_the_bit(name):
    batch, algorithm = make(seed=2), build(name)
    signals, counts = algorithm.signals(batch.rollouts, {}), Counts.of(batch.rollouts.mask)
    leaf, other = (batch.logprobs.clone().requires_grad_() for _ in range(2))
    want = policy_loss(algorithm, leaf, batch.rollouts, signals, counts, KL)
    want.value.backward()
    if "memory" in algorithm.needs:
        with pytest.raises(ValueError, match=f"^{name} .*batches"):
            batch_loss(name, other, batch.rollouts, KL)
        return
    for method in (name, METHODS[name], {"name": METHODS[name]}, algorithm):
        other.grad = None
        loss, metrics = batch_loss(method, other, batch.rollouts, KL)
        loss.backward()
        assert torch.equal(loss, want.value) and torch.equal(other.grad, leaf.grad)
        assert metrics == {**signals.metrics, **want.stats.summary()}


def test_a_record_is_judged_as_a_named_one_is():
    with pytest.raises(ConfigError, match="'grpo'"):
        build(Method("grpo", "-", ClipParams))
    with pytest.raises(ValueError, match=r"own: .* clip_low"):
        Method("own", "-", Params)


def test_lists_are_tensors():
    lists = Rollouts([4, 4], [1, 0], [[True, False], [True, True]], PER_TOKEN, PER_TOKEN)
    tensors = Rollouts(
        torch.tensor([4, 4]),
        torch.tensor([1.0, 0.0]),
        torch.tensor([[True, False], [True, True]]),
        torch.tensor(PER_TOKEN),
        torch.tensor(PER_TOKEN),
    )
    leaf = torch.tensor(PER_TOKEN, requires_grad=True)
    (got, metrics), (want, _) = (batch_loss("grpo", leaf, x) for x in (lists, tensors))
    assert torch.equal(got, want) and metrics["ratio/mean"] == 1
    assert lists.rewards.dtype == torch.float64
    assert lists.ref_logprobs is not None and lists.ref_logprobs.tolist() == PER_TOKEN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": ["a", 1]}, "^group .*tensor"),
        ({"rewards": [1, None]}, "^rewards .*tensor"),
        ({"old_logprobs": [[1.0], [1.0, 2.0]]}, "^old_logprobs .*tensor"),
        ({"mask": [[1, 0], [1, 1]]}, r"^mask .*bool.*torch\.int64"),
        ({"rewards": [1, 0, 1]}, r"^rewards .*\[3\].*\[2, 2\].*\[2\]"),
        ({"rewards": 1}, r"^rewards .*\[\].*\[2, 2\].*\[2\]"),
    ],
)
def test_lists_that_are_no_tensors_are_one_sentence(change, message):
    values = {"group": [0, 0], "rewards": [1, 0], "mask": [[True, True]] * 2}
    with pytest.raises(ValueError, match=message):
        Rollouts(**{**values, "old_logprobs": PER_TOKEN, **change})


def test_log_probs_without_a_gradient_are_refused():
    rollouts = Rollouts([0, 0], [1, 0], [[True, True]] * 2, PER_TOKEN)
    for logprobs in (PER_TOKEN, torch.tensor(PER_TOKEN)):
        with pytest.raises(ValueError, match=r"logprobs .*gradient"):
            batch_loss("grpo", logprobs, rollouts)
    with torch.no_grad():
        assert batch_loss("grpo", torch.tensor(PER_TOKEN), rollouts)[0] == 0


def test_adapters_take_public_names_alone():
    """`import nemo_algos as na`: each na.NAME is in `__all__`."""
    for path in (Path(nemo_algos.__file__).parent / "engines/adapters").glob("*.py"):
        tree = ast.walk(ast.parse(path.read_text()))
        taken = (node for node in tree if isinstance(node, ast.Attribute))
        names = {node.attr for node in taken if getattr(node.value, "id", None) == "na"}
        assert names <= set(nemo_algos.__all__), path

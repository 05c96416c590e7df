"""docs/adapters.md's losses for Tinker and prime-rl, against those trainers' formulas by hand."""

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch
from test_docs import ROOT, execute, folder

__all__ = ["folder"]
PAGE = ROOT / "docs" / "adapters.md"
LENGTHS = (5, 3, 7, 4)
REWARDS = (1.0, 0.0, 1.0, 0.25)
PLAIN = {"name": "grpo", "advantage_std": "none", "aggregation": "token"}


@dataclass
class Outputs:
    """prime-rl's LossOutputs."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@pytest.fixture
def hooks(folder, monkeypatch):
    """The page's two modules, beside a stand-in for prime-rl's."""
    theirs = ModuleType("prime_rl.trainer.rl.loss")
    theirs.LossOutputs = Outputs
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    execute(PAGE, folder)
    return [importlib.import_module(name) for name in ("with_tinker", "with_prime_rl")]


def made(spread):
    """Log-probs of each response, new with gradient and old; its mask, with a reply of a tool."""
    torch.manual_seed(0)
    old = [-torch.rand(n) for n in LENGTHS]
    new = [(x - spread * torch.rand(len(x))).requires_grad_() for x in old]
    masks = [torch.ones(n).bool() for n in LENGTHS]
    masks[2][3] = False
    return new, old, masks


def clipped(new, old, masks, advantages):
    """- sum of min(r A, clip(r, 0.8, 1.2) A) over the masked tokens: both trainers' PPO loss."""
    total = 0.0
    for x, y, mask, advantage in zip(new, old, masks, advantages, strict=True):
        ratio = (x - y).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total = total - gain[mask].sum()
    return total


def tensor_data(x):
    return SimpleNamespace(to_torch=lambda: x)


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_tinkers_loss_is_its_own_ppo_by_the_number_of_tokens(hooks, spread):
    new, old, masks = made(spread)
    data = []
    for y, mask in zip(old, masks, strict=True):
        fields = {"logprobs": tensor_data(y), "mask": tensor_data(mask.float())}
        data.append(SimpleNamespace(loss_fn_inputs=fields))
    value, metrics = hooks[0].loss_of(PLAIN, [0, 0, 1, 1], REWARDS)(data, new)
    wanted = clipped(new, old, masks, (0.5, -0.5, 0.375, -0.375)) / 18
    torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-7)
    got = torch.autograd.grad(value, new)
    for mine, theirs in zip(got, torch.autograd.grad(wanted, new), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
    assert metrics["clip/fraction"] == 0 if spread == 0 else metrics["clip/fraction"] > 0
    value, _ = hooks[0].loss_of("etr", [0, 0, 1, 1], REWARDS)(data, new)
    assert value.isfinite()


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_prime_rls_loss_is_the_sum_of_one_sequence(hooks, spread):
    new, old, masks = made(spread)
    advantages = (0.5, -0.5, 0.375, -0.375)
    for x, y, mask, advantage in zip(new, old, masks, advantages, strict=True):
        given = SimpleNamespace(
            trainer_logprobs=x,
            inference_logprobs=y,
            loss_mask=mask,
            advantages=torch.full_like(y, advantage),
        )
        out = hooks[1].loss(given, **PLAIN)
        wanted = clipped([x], [y], [mask], [advantage])
        torch.testing.assert_close(out.loss, wanted, rtol=1e-6, atol=1e-7)
        got = torch.autograd.grad(out.loss, x)[0]
        torch.testing.assert_close(got, torch.autograd.grad(wanted, x)[0], rtol=1e-6, atol=1e-7)
        assert all(isinstance(value, torch.Tensor) for value in out.metrics.values())


@pytest.mark.parametrize("name", ["etr", "quatro", "erpo", "apmpo", "grpo"])
def test_what_needs_a_group_is_refused_for_prime_rl(hooks, name):
    """GRPO too, as the papers have it: its mean is over sequences."""
    new, old, masks = made(0.1)
    given = SimpleNamespace(
        trainer_logprobs=new[0],
        inference_logprobs=old[0],
        loss_mask=masks[0],
        advantages=torch.ones(LENGTHS[0]),
    )
    with pytest.raises(ValueError, match="needs more than advantages"):
        hooks[1].loss(given, name=name)

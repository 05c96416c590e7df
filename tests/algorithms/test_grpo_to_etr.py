"""examples/grpo_to_etr.py computes what the library does."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from batches import close
from matrix import some_of

from nemo_algos import Rollouts, batch_loss
from nemo_algos.algorithms.methods import STUDIED

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "grpo_to_etr.py"
PAGE = (ROOT / "docs" / "methods" / "index.md").read_text()
SPEC = importlib.util.spec_from_file_location("grpo_to_etr", FILE)
assert SPEC and SPEC.loader
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

METHODS = ("grpo", "etr", "quatro", "erpo")
# a mixed group, partial credit, flat ones (0.1 has no exact mean), one response, one success
REWARDS = ((0, 1, 0, 1, 1), (0.1, 0.5, 0.9), (0.1, 0.1, 0.1), (1,), (0, 0, 0, 1), (-1, 1))


def ragged(seed):
    """Unequal groups in any order, holes in the mask, ratios inside and outside the clip range."""
    rng = torch.Generator().manual_seed(seed)
    flat = [(7 * g - 3, r) for g, group in enumerate(REWARDS) for r in group]
    flat = [flat[i] for i in torch.randperm(len(flat), generator=rng).tolist()]
    x = torch.randn(4, len(flat), 15, generator=rng, dtype=torch.float64)
    mask = torch.rand(len(flat), 15, generator=rng) < 0.7
    mask &= torch.arange(15) < torch.randint(1, 16, (len(flat), 1), generator=rng)
    mask[:, 0] = True
    group, rewards = torch.tensor(flat, dtype=torch.float64).T
    old = -x[0].abs()
    ref = (old + 0.1 * x[1]).clamp(max=0)
    batch = example.Batch(group.long(), rewards, mask, old, ref, x[2].abs())
    return (old + 0.3 * x[3]).clamp(max=0).requires_grad_(), batch


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("made", [example.random_batch, ragged])
@pytest.mark.parametrize("seed", some_of(range(5), 2))
def test_loss_and_gradient_are_the_library_s(name, made, seed):
    logprobs, batch = made(seed)
    group, rewards, mask, old, ref, entropy = batch
    rollouts = Rollouts(group, rewards, mask, old, ref, entropy)
    loss, want = getattr(example, name)(logprobs, batch), batch_loss(name, logprobs, rollouts)[0]
    close(loss, want)
    (got,), (gradient,) = (torch.autograd.grad(x, logprobs) for x in (loss, want))
    assert gradient.norm() > 1e-3
    close(got, gradient)


def test_it_runs_alone():
    """With torch, and nothing of ours."""
    assert set(re.findall(r"^(?:from|import) (\w+)", FILE.read_text(), re.M)) == {
        "math",
        "torch",
        "typing",
    }
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True, check=True)
    logprobs, batch = example.random_batch()
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [*METHODS]
    for name, _, loss, *_, norm in rows:
        value = getattr(example, name)(logprobs, batch)
        (gradient,) = torch.autograd.grad(value, logprobs)
        assert abs(float(loss) - value.item()) <= 6e-5
        assert abs(float(norm) - gradient.norm().item()) <= 6e-5
    assert f"```text\n{done.stdout}```" in PAGE


def body(function):
    """Its lines after the docstring, without comments."""
    lines = inspect.getsource(function).splitlines()[2:]
    return [line.partition("  #")[0].strip() for line in lines if line.strip()[0] != "#"]


def changed(name):
    """GRPO with the difference that a method's page shows."""
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    shown = page.split("```diff\n")[1].split("```")[0].splitlines()
    assert [line[1:] for line in shown if line[0] != "+"] == body(example.grpo)
    code = "\n    ".join(line[1:] for line in shown if line[0] != "-")
    scope = dict(vars(example))
    exec(f"def method(logprobs, batch):\n    {code}", scope)
    return scope["method"]


DAPO = {"name": "grpo", "clip_high": 0.28, "aggregation": "token"}


@pytest.mark.parametrize("name", STUDIED)
@pytest.mark.parametrize("seed", some_of(range(3), 1))
def test_the_difference_on_its_page_makes_grpo_the_method(name, seed):
    logprobs, batch = example.random_batch(seed)
    want, _ = batch_loss(DAPO if name == "grpo" else name, logprobs, Rollouts(*batch))
    loss = changed(name)(logprobs, batch)
    close(loss, want)
    (got,), (gradient,) = (torch.autograd.grad(x, logprobs) for x in (loss, want))
    close(got, gradient)

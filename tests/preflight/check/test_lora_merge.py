"""The share of a LoRA update that refit rounds away is that of adapters that Adam has moved."""

from math import sqrt

import pytest
import torch
from safetensors.torch import save_file

from nemo_algos.preflight.check.rules.lora import ASSUMED, DIGITS, Adapter, stored, unchanged

WIDTH, OUT = 384, 192


def _simulated(dim, alpha, rate, steps, noisy, xavier, dtype):
    """Real adapters, real AdamW, real rounding: the share of the weights that do not change."""
    torch.manual_seed(0)
    weight = (0.02 * torch.randn(OUT, WIDTH)).to(dtype)
    a, b = torch.nn.Parameter(torch.empty(dim, WIDTH)), torch.nn.Parameter(torch.zeros(OUT, dim))
    if xavier:
        torch.nn.init.xavier_normal_(a)
    else:
        torch.nn.init.kaiming_uniform_(a, a=sqrt(5))
    optimizer = torch.optim.AdamW([a, b], lr=rate)
    gradients = [torch.randn_like(a), torch.randn_like(b)]
    for _ in range(steps):
        a.grad, b.grad = [torch.randn_like(g) for g in gradients] if noisy else gradients
        optimizer.step()
    merged = (weight.float() + (b @ a).detach() * alpha / dim).to(dtype)
    return (merged == weight).float().mean().item()


@pytest.mark.parametrize(
    ("dim", "alpha", "rate", "steps", "noisy", "xavier", "dtype"),
    [
        (8, 32, 1e-5, 40, True, True, torch.bfloat16),
        (8, 32, 1e-5, 200, True, True, torch.bfloat16),
        (8, 32, 1e-5, 20, False, True, torch.bfloat16),
        (64, 64, 5e-6, 200, True, True, torch.bfloat16),
        (16, 32, 1e-4, 100, True, False, torch.bfloat16),
        (32, 32, 3e-3, 100, True, True, torch.bfloat16),
        (8, 16, 2e-6, 40, True, True, torch.float16),
    ],
)
def test_the_share_is_that_of_a_simulation(dim, alpha, rate, steps, noisy, xavier, dtype):
    adapter = Adapter(dim, alpha, WIDTH, xavier)
    update = adapter.update(rate * (sqrt(steps) if noisy else steps))
    share = unchanged(ASSUMED, update, DIGITS[str(dtype).removeprefix("torch.")])
    found = _simulated(dim, alpha, rate, steps, noisy, xavier, dtype)
    assert share == pytest.approx(found, abs=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_of_a_folder_are_read(dtype, tmp_path):
    torch.manual_seed(0)
    weight = (0.3 * torch.randn(16, 8)).to(dtype)
    layers = {"model.layers.0.mlp.up_proj.weight": weight, "model.embed.weight": weight * 9}
    save_file(layers, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert stored(tmp_path) == weight.float().flatten().tolist()


def test_no_folder_no_weights(tmp_path):
    assert stored(tmp_path / "nowhere") == []

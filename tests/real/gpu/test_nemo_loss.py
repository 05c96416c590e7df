"""Our loss in NeMo-RL on a GPU: the CPU's value, and no more waits for the GPU than NeMo-RL's own.

Needs nemo_rl beside it (the environment of make test-nemo, or NeMo-RL's image).
"""

import warnings

import pytest
import torch

pytest.importorskip("nemo_rl", reason="runs where NeMo-RL is")

from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.engines.nemo.estimator import Estimator, Forward
from nemo_algos.engines.nemo.loss import AlgorithmLoss

B, S = 8, 512
LACKING = {"memory", "reward_parts", "turn_rewards"}  # of this batch
CONFIG = ClippedPGLossConfig(reference_policy_kl_penalty=0.01)


def batch(name):
    """A micro-batch of two groups on the CPU, and log pi [B,S-1]."""
    torch.manual_seed(0)
    estimator = Estimator(build(name))
    estimator.forward = Forward(torch.rand(B, S))
    old, ones = -1 - torch.rand(B, S), torch.ones(B, S)
    ref, rewards = old + 0.1 * torch.randn(B, S), (torch.arange(B) % 3 == 0).float()
    prompts = torch.arange(2).repeat_interleave(B // 2)[:, None]
    advantages = estimator.compute_advantage(
        prompts, rewards, ones, {}, old, ref, generation_logprobs=old
    )
    data = {
        "advantages": advantages,
        "prev_logprobs": old,
        "generation_logprobs": old,
        "reference_policy_logprobs": ref,
        "token_mask": ones,
        "sample_mask": torch.ones(B),
        **estimator.signals_for(advantages),
    }
    return data, (old + 0.05 * torch.randn(B, S))[:, 1:]


def call(loss, data, logprobs, device):
    """The value, the gradient, and how often the host waited for the device."""
    data = {k: v.to(device) for k, v in data.items()}
    logprobs = logprobs.to(device).requires_grad_()
    counts = [torch.tensor(float(n), device=device) for n in (B, B * (S - 1))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            value, _ = loss(logprobs, data, *counts)
            value.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in caught if "synchronizing" in str(w.message)]
    return value.detach().cpu(), logprobs.grad.cpu(), len(waits)


@pytest.mark.parametrize("name", [k for k, m in METHODS.items() if not m.needs & LACKING])
def test_the_loss_is_the_cpus_and_waits_no_oftener_than_nemo_rls(name):
    data, logprobs = batch(name)
    ours, stock = AlgorithmLoss(CONFIG, build(name)), ClippedPGLossFn(CONFIG)
    theirs = call(stock, data, logprobs, "cuda")[2]
    value, grad, waits = call(ours, data, logprobs, "cuda")
    want = call(ours, data, logprobs, "cpu")
    terms = float(want[1].abs().sum())  # of LUSPO some hundreds, which cancel
    torch.testing.assert_close(value, want[0], rtol=1e-5, atol=1e-6 + 1e-7 * terms)
    torch.testing.assert_close(grad, want[1], rtol=1e-4, atol=1e-7)
    assert theirs > 0 and waits <= theirs

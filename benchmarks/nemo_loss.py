"""Our loss call and estimator against NeMo-RL's stock ones, on a CPU.

    NEMO_RL=PATH PYTHONPATH=$NEMO_RL:. python benchmarks/nemo_loss.py      (in the environment of
    make test-nemo)

Both sides in turn, in one process, 1 thread; ratio = median of ours / theirs over repetitions, with
quartiles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator
from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.nemo.estimator import Estimator, Forward
from nemo_algos.engines.nemo.loss import AlgorithmLoss

B, S = 8, 4096
PROMPTS, RESPONSES, POSITIONS = 512, 16, 2048


def seconds(f: Callable[[], Any]) -> float:
    """Of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], times: int
) -> tuple[float, list[float]]:
    """Milliseconds of ours (median), and the quartiles of ours / theirs."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(times)]
    quartiles = statistics.quantiles((a / b for a, b in pairs), n=4)
    return 1000 * statistics.median(a for a, _ in pairs), quartiles


def loss_batch(name: str) -> tuple[AlgorithmLoss, dict[str, torch.Tensor], torch.Tensor]:
    """A micro-batch of two groups of four, all tokens valid."""
    algorithm = build(name)
    old = -1 - torch.rand(B, S)
    ones = torch.ones(B, S)
    estimator = Estimator(algorithm)
    estimator.forward = Forward(torch.rand(B, S))
    rewards = (torch.arange(B) % 3 == 0).float()
    prompts = torch.arange(2).repeat_interleave(B // 2)[:, None]
    ref = old + 0.1 * torch.randn(B, S)
    advantages = estimator.compute_advantage(prompts, rewards, ones, {}, old, ref)
    data = {
        "advantages": advantages,
        "prev_logprobs": old,
        "generation_logprobs": old,
        "token_mask": ones,
        "sample_mask": torch.ones(B),
        **estimator.signals_for(advantages),
    }
    config = ClippedPGLossConfig(reference_policy_kl_penalty=0.0)
    logprobs = (old + 0.05 * torch.randn(B, S))[:, 1:].requires_grad_()
    return AlgorithmLoss(config, algorithm), data, logprobs


def losses() -> None:
    """Forward and backward of a loss call, B = 8, S = 4096."""
    counts = (torch.tensor(float(B)), torch.tensor(float(B * (S - 1))))
    for name in STUDIED:
        loss, data, logprobs = loss_batch(name)
        stock = ClippedPGLossFn(ClippedPGLossConfig(reference_policy_kl_penalty=0.0))
        ms, (low, middle, high) = compare(
            lambda: loss(logprobs, data, *counts)[0].backward(),  # noqa: B023
            lambda: stock(logprobs, data, *counts)[0].backward(),  # noqa: B023
            60,
        )
        print(
            f"loss       {name:7} {ms:6.2f} ms   x{middle:.2f} of stock ({low:.2f} to {high:.2f})"
        )


def estimators() -> None:
    """512 prompts x 16 responses x 2048 positions, prompts of 256 tokens."""
    prompts = torch.randint(150_000, (PROMPTS, 256)).repeat_interleave(RESPONSES, 0)
    rewards = (torch.rand(len(prompts)) < 0.5).float()
    mask = torch.ones(len(prompts), POSITIONS)
    old = -torch.rand(len(prompts), POSITIONS)
    stock = GRPOAdvantageEstimator(AdvEstimatorConfig(), ClippedPGLossConfig())
    for name in ("etr", "quatro", "apmpo", "grpo", "gspo"):
        ours = Estimator(build(name))
        ms, (low, middle, high) = compare(
            lambda: ours.compute_advantage(prompts, rewards, mask, {}, old, old),  # noqa: B023
            lambda: stock.compute_advantage(prompts, rewards, mask),
            5,
        )
        print(
            f"estimator  {name:7} {ms:6.1f} ms   1/{1 / middle:.0f} of stock ({1 / high:.0f} to "
            f"{1 / low:.0f})"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    losses()
    estimators()

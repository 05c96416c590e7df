"""Shape and surrogate of every method against the plain GRPO surrogate.

On the same [B,S] float32 log-probs.

    uv run benchmarks/surrogate.py

plain      log-ratio, clipped surrogate with bounds 0.2 and token ratios, sequence mean
bare  the same with the method: log-ratio, `shape`, its surrogate and mean; goal at most 1.5 x plain
with stats `policy_loss` as the engines call it: bare, the check for non-finite log-probs and all
metrics
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import timing
import torch
import typer

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts, clipped_surrogate, difference, reduce
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.algorithms.rollouts import Rollouts

Loss = Callable[[], torch.Tensor]


def make(sequences: int, positions: int) -> tuple[Rollouts, torch.Tensor]:
    """Groups of 16, rewards 0/1, lengths from a tenth of the positions up, log-ratios of 0.1."""
    rng = torch.Generator().manual_seed(0)
    shape = (sequences, positions)
    lengths = torch.randint(max(1, positions // 10), positions + 1, (sequences, 1), generator=rng)
    old = -1 - torch.rand(shape, generator=rng)
    rollouts = Rollouts(
        group=torch.arange(sequences) // 16,
        rewards=torch.randint(0, 2, (sequences,), generator=rng),
        mask=torch.arange(positions) < lengths,
        old_logprobs=old,
        ref_logprobs=old + 0.1 * torch.randn(shape, generator=rng),
        entropy=torch.rand(shape, generator=rng),
    )
    return rollouts, (old + 0.1 * torch.randn(shape, generator=rng)).requires_grad_()


def plain(logprobs: torch.Tensor, rollouts: Rollouts, signals: Signals, counts: Counts):
    mask = rollouts.mask
    log_ratio = difference(logprobs, rollouts.old_logprobs, mask, 20.0)
    advantages = signals.advantages.to(log_ratio.dtype)
    return -reduce(clipped_surrogate(log_ratio, advantages, 0.2, 0.2), mask, "sequence", counts)


def bare(
    a: Algorithm, logprobs: torch.Tensor, rollouts: Rollouts, signals: Signals, counts: Counts
):
    """policy_loss without KL, checks and statistics."""
    mask = rollouts.mask
    log_ratio = difference(logprobs, rollouts.old_logprobs, mask, a.base.params.max_log_ratio)
    terms = a.surrogate(a.transform(log_ratio, mask, signals), logprobs, mask)
    return -reduce(terms, mask, a.mean, counts)


def with_stats(
    a: Algorithm, logprobs: torch.Tensor, rollouts: Rollouts, signals: Signals, counts: Counts
):
    return policy_loss(a, logprobs, rollouts, signals, counts).value


def forward_backward(loss: Loss, logprobs: torch.Tensor) -> None:
    logprobs.grad = None
    loss().backward()


def main(
    sequences: Annotated[int, typer.Option(help="B")] = 512,
    positions: Annotated[int, typer.Option(help="S")] = 2048,
    rounds: int = 25,
    keep_pages: Annotated[bool, typer.Option(help="Tell malloc to keep freed memory")] = True,
) -> None:
    torch.set_num_threads(1)
    if keep_pages:
        timing.keep_pages()
    rollouts, logprobs = make(sequences, positions)
    counts, grpo = Counts.of(rollouts.mask), build("grpo").signals(rollouts)
    losses: dict[str, Loss] = {"plain": partial(plain, logprobs, rollouts, grpo, counts)}
    for name in STUDIED:
        a = build(name)
        signals = a.signals(rollouts)
        losses[name] = partial(bare, a, logprobs, rollouts, signals, counts)
        losses[f"{name}+stats"] = partial(with_stats, a, logprobs, rollouts, signals, counts)
    calls: dict[str, Callable[[], object]] = {f"{k} forward": v for k, v in losses.items()}
    calls |= {f"{k} both": partial(forward_backward, v, logprobs) for k, v in losses.items()}
    times = timing.interleaved(calls, rounds)
    print(f"{timing.machine()}, [{sequences}, {positions}] float32, {rounds} rounds, {keep_pages=}")
    print(f"plain: forward {timing.milliseconds(times, 'plain forward'):.1f} ms", end=", ")
    print(f"forward and backward {timing.milliseconds(times, 'plain both'):.1f} ms of CPU")
    print("ratio to plain [quartiles]: forward, forward and backward; the same with stats")
    for name in STUDIED:
        row = [
            timing.ratio(times, f"{name}{stats} {part}", f"plain {part}")
            for stats in ("", "+stats")
            for part in ("forward", "both")
        ]
        print(f"{name:7}", *(f"{m:5.2f} [{low:.2f} {high:.2f}]" for m, low, high in row))


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

"""Random rollout batches with everything awkward in them, and the loss of one.

B sequences, S positions.
"""

from dataclasses import replace
from itertools import cycle, islice
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.golden.verify import GoldenRollouts
from nemo_algos.algorithms.kernel import Signals, keep_advantages
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.rollouts import Rollouts

KL = LossConfig(reference_policy_kl_penalty=0.01)
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30, -1e30)
TOKEN_FIELDS = ("old_logprobs", "ref_logprobs", "entropy", "gen_logprobs")
# group sizes and rewards in [0, 1]: a mixed group, a flat one, one of a single sequence, one with a
# reward at its mean
REWARDS = ((0.0, 1.0, 0.3, 0.0, 1.0, 0.7), (1.0,) * 4, (0.6,), (0.0, 0.5, 1.0), (0.0, 1.0))

every_method = pytest.mark.parametrize("name", METHODS)
# a term beside the advantage pulls to pi_old, or to a teacher, where the advantage is 0
PULLING = {"quatro", "turn_quatro", "kl_cov", "prime_rl", "dro", "kimi", "opd"}


# GRPO's surrogate with nothing in its way: what dual_clip is for
PLAIN = [
    name
    for name, method in METHODS.items()
    if method.clips == method.form == "ratio" and method.reweight is keep_advantages
    if name not in ("pass_at_k", "wapo")  # which have no negative advantage
]


class Batch(NamedTuple):
    rollouts: Rollouts
    logprobs: Tensor  # [B,S] log pi_theta

    def rows(self, rows: Tensor | slice) -> "Batch":
        return Batch(self.rollouts[rows], self.logprobs[rows])


class Result(NamedTuple):
    value: Tensor
    grad: Tensor  # [B,S]
    stats: object


def make(
    seed: int = 0,
    rewards: tuple[tuple[float, ...], ...] = REWARDS,
    positions: int = 12,
    spread: float = 0.3,
    large: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """Shuffled order, holes, garbage off the mask.

    With REWARDS an empty row and (large) huge log-ratios too.
    """
    rng = torch.Generator().manual_seed(seed)
    flat = [(7 * g - 3, r) for g, group in enumerate(rewards) for r in group]
    order = torch.randperm(len(flat), generator=rng).tolist()
    shape = (len(flat), positions)
    lengths = torch.randint(2, positions + 1, (len(flat), 1), generator=rng)
    mask = (torch.rand(shape, generator=rng) < 0.8) & (torch.arange(positions) < lengths)
    mask[:, 0] = True
    if rewards is REWARDS:
        mask[order.index(3)] = False  # a sequence of the first group

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=rng, dtype=torch.float64)

    old = -3 * torch.rand(shape, generator=rng, dtype=torch.float64)
    logprobs = old + normal(spread)
    if large and rewards is REWARDS:
        for i, jump in enumerate((25.0, -25.0, 1e4, -1e4, 6.0)):
            logprobs[order.index(i), 0] += jump
    tensors = {
        "old_logprobs": old,
        "ref_logprobs": old + normal(0.2),
        "gen_logprobs": old + normal(0.1),
        "entropy": 2 * torch.rand(shape, generator=rng, dtype=torch.float64),
    }
    tensors = {k: off_mask(v, mask).to(dtype) for k, v in tensors.items()}
    won = torch.tensor([flat[i][1] for i in order], dtype=torch.float64)
    rollouts = GoldenRollouts(
        group=torch.tensor([flat[i][0] for i in order]),
        rewards=won,
        mask=mask,
        **tensors,
        reward_parts={"right": (won > 0.5).double(), "brief": mask.sum(1) / positions},
        prompt=torch.tensor([2**40 - flat[i][0] for i in order]),
        drift=torch.full_like(won, 0.01),
        turn_rewards=torch.stack([0.3 * won.roll(1), 0.2 - 0.5 * won.roll(2)], 1),
    )
    return Batch(rollouts, off_mask(logprobs, mask).to(dtype))


def off_mask(values: Tensor, mask: Tensor) -> Tensor:
    """values on the mask, NaN, infinities and huge numbers elsewhere."""
    garbage = torch.tensor(list(islice(cycle(GARBAGE), mask.numel())), dtype=values.dtype)
    return values.where(mask, garbage.view(mask.shape))


def on_policy(batch: Batch) -> Batch:
    return Batch(batch.rollouts, batch.rollouts.old_logprobs.clone())


def change(batch: Batch, **values: Tensor) -> Batch:
    return Batch(replace(batch.rollouts, **values), batch.logprobs)


def run(
    method: str | dict,
    batch: Batch,
    config: LossConfig = KL,
    signals: Signals | None = None,
    counts: Counts | None = None,
) -> Result:
    """The loss of a batch, d loss / d logprobs and the statistics."""
    algorithm = build(method)
    signals = algorithm.signals(batch.rollouts, {}) if signals is None else signals
    counts = Counts.of(batch.rollouts.mask) if counts is None else counts
    logprobs = batch.logprobs.clone().requires_grad_()
    loss = policy_loss(algorithm, logprobs, batch.rollouts, signals, counts, config)
    loss.value.backward()
    assert logprobs.grad is not None
    return Result(loss.value.detach(), logprobs.grad, loss.stats)


def close(got: Tensor, want: Tensor | float, tolerance: float = 1e-12) -> None:
    """Assert |got - want| <= tolerance * max(1, |want|) everywhere, NaN nowhere.

    want: a tensor, or a number that each equals.
    """
    want = want.to(got) if isinstance(want, Tensor) else torch.full_like(got, want)
    assert got.shape == want.shape, (got.shape, want.shape)
    error = (got - want).abs() / want.abs().clamp(min=1)
    assert bool((error <= tolerance).all()), f"error {error.max():.3e} > {tolerance:g}"

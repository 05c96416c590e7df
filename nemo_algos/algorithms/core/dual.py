"""QUATRO's dual: every prompt's lambda that puts the re-weighted group on its KL radius."""

import torch
from torch import Tensor

from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.algorithms.shapes import PerSequence

MAX_STEPS = 60  # Newton needs 4 to 8; bisection alone, its safeguard, some 50
REACH = 60.0  # the bracket of log(beta) on each side of the small-radius solution


def kl_radius(rewards: PerSequence, groups: Groups, delta: float, max_kl_fraction: float) -> Tensor:
    """[G] radius = min(delta, max_kl_fraction * -log(share of sequences with the best reward)).

    Re-weighting a group cannot reach a larger KL than -log share: there the dual has no interior
    minimum.
    """
    best = rewards >= (groups.max(rewards) - groups.tolerance(rewards))[groups.index]
    return (-max_kl_fraction * groups.mean(best).log()).clamp(max=delta)


def solve(rewards: PerSequence, groups: Groups, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The minimiser of f(lambda) = lambda (radius + log mean exp(R / lambda)) and its advantages.

    rewards [B] float64, radius [G]. Returns A [B] = R / lambda - log mean exp(R / lambda) and
    lambda [G]; both 0 in flat groups. At the optimum mean(e^A A) = radius and mean(e^A) = 1.

    With beta = 1 / lambda the condition is KL(beta) = radius, increasing in beta. log KL is nearly
    linear in log beta (slope 2 for small beta), so Newton in these coordinates converges in a few
    steps; a bracket guards it.
    """
    flat = groups.flat(rewards)
    top = groups.max(rewards)
    spread = (top + groups.max(-rewards)).where(~flat, 1.0)  # [G]
    x = (rewards - top[groups.index]) / spread[groups.index]  # [B] in [-1, 0]
    target = radius.where(~flat, 1.0).log()
    log_beta = 0.5 * (2 * radius.where(~flat, 1.0)).log() - groups.std(x).where(~flat, 1.0).log()
    low = log_beta - REACH
    high = log_beta + REACH
    for _ in range(MAX_STEPS):
        log_kl, slope = _log_kl(x, groups, log_beta)
        error = (log_kl - target).where(~flat, 0.0)
        low = log_beta.where(error < 0, low)
        high = log_beta.where(error > 0, high)
        step = log_beta - error / slope
        inside = (step > low) & (step < high)
        step = step.where(inside, 0.5 * (low + high)).where(error != 0, log_beta)
        done = bool(((step - log_beta).abs() <= 1e-14 * (1 + log_beta.abs())).all())
        log_beta = step
        if done:
            break
    tilt, _ = _tilt(x, groups, log_beta.exp())
    lam = (spread / log_beta.exp()).where(~flat, 0.0)
    return tilt.where(~flat[groups.index], 0.0), lam


def _tilt(x: Tensor, groups: Groups, beta: Tensor) -> tuple[Tensor, Tensor]:
    """A [B] = beta x - log mean exp(beta x), and e^A, the weights q_i / p_i of the tilted group."""
    scaled = beta[groups.index] * x
    tilt = scaled - groups.mean(scaled.exp()).log()[groups.index]
    return tilt, tilt.exp()


def _log_kl(x: Tensor, groups: Groups, log_beta: Tensor) -> tuple[Tensor, Tensor]:
    """log KL(beta) [G] and its slope in log beta: KL = mean(e^A A), dKL/dbeta = beta Var_q x."""
    beta = log_beta.exp()
    tilt, weight = _tilt(x, groups, beta)
    # e^A A - (e^A - 1) has the same mean and no negative term: no cancellation between the members
    kl = groups.mean(weight * tilt - torch.expm1(tilt)).clamp(min=1e-300)
    centred = x - groups.mean(weight * x)[groups.index]
    variance = groups.mean(weight * centred.square())
    return kl.log(), (beta.square() * variance / kl).clamp(min=1e-12)

"""From GRPO to ETR, QUATRO and ERPO in plain PyTorch: `uv run examples/grpo_to_etr.py`.

Read it from top to bottom. Each method changes one thing in GRPO. `nemo_algos.batch_loss` computes
the same numbers: tests/algorithms/test_grpo_to_etr.py holds losses and gradients to 1e-12. Left out
are the limit of 20 on log-ratios, empty responses, the KL penalty, all metrics, and what QUATRO
does where a group of 100 or more is nearly solved and no q has a KL of delta.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """B responses of at most S tokens, sampled by pi_old. Log-probs and entropies are in nats."""

    group: Tensor  # [B]     integers; responses to the same prompt have the same
    rewards: Tensor  # [B]
    mask: Tensor  # [B,S]   True on the response's tokens
    old: Tensor  # [B,S]   log pi_old of each token
    ref: Tensor  # [B,S]   log pi_ref of each token, a frozen reference: for ERPO
    entropy: Tensor  # [B,S]   of pi_old at each token: for ERPO


def grpo(logprobs: Tensor, batch: Batch) -> Tensor:
    """The loss, a scalar. logprobs [B,S]: log pi_theta of each token, with gradient."""
    ratio = (logprobs - batch.old).exp()  # [B,S]
    A = per_group(normalise, batch)[:, None]  # [B,1]
    J = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
    return -response_mean(J, batch.mask).mean()


def normalise(R: Tensor) -> Tensor:
    """The advantages of one prompt's responses; 0 where all rewards are equal."""
    return (R - R.mean()) / (R.std() + 1e-6) if R.max() > R.min() else torch.zeros_like(R)


def per_group(function, batch: Batch) -> Tensor:
    """[B]: a function of one prompt's rewards, for each prompt."""
    out = torch.zeros_like(batch.rewards)
    for g in batch.group.unique():
        out[batch.group == g] = function(batch.rewards[batch.group == g])
    return out


def response_mean(x: Tensor, mask: Tensor) -> Tensor:
    """[B,S] -> [B]: the mean over each response's tokens."""
    return (x * mask).sum(1) / mask.sum(1)


def etr(logprobs: Tensor, batch: Batch) -> Tensor:
    """ETR: the clip range is no constant. It depends on the response and on its prompt."""
    ratio = (logprobs - batch.old).exp()
    A = per_group(normalise, batch)[:, None]
    p = per_group(lambda R: (R > 0).double().mean(), batch)[:, None]  # the success rate
    # wider for good responses, and for prompts that are neither solved nor hopeless
    radius = 0.2 + 0.1 * A.tanh() + 0.1 * 4 * p * (1 - p)  # [B,1]
    J = torch.minimum(ratio * A, ratio.clamp(1 - radius, 1 + radius) * A)
    return -response_mean(J, batch.mask).mean()


def quatro(logprobs: Tensor, batch: Batch) -> Tensor:
    """QUATRO: no clip. The advantages are those of the best policy within a KL radius."""
    log_s = ((logprobs - batch.old) * batch.mask).sum(1)  # [B]: of whole responses
    A = per_group(within_kl, batch)
    # less log s, the advantage falls to 0 where the policy has arrived
    return -(log_s.exp() * (A - log_s.detach())).mean()


def within_kl(R: Tensor, delta: float = 0.01) -> Tensor:
    """log q_i / p_i for q_i ~ exp(R_i / lambda), p uniform, and the lambda of KL(q, p) = delta."""
    if R.max() == R.min():
        return torch.zeros_like(R)
    low, high = 1e-9, 1e9
    for _ in range(100):  # bisection: the larger lambda, the smaller the KL
        lam = math.sqrt(low * high)
        A = R / lam - torch.logsumexp(R / lam, 0) + math.log(len(R))
        low, high = (lam, high) if (A.exp() * A).mean() > delta else (low, lam)
    return A


def erpo(logprobs: Tensor, batch: Batch) -> Tensor:
    """ERPO: an advantage per token, and the mean over all tokens."""
    ratio = (logprobs - batch.old).exp()
    A = token_advantages(batch)  # [B,S]
    J = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
    return -J[batch.mask].mean()


def token_advantages(batch: Batch) -> Tensor:
    """[B,S]: the group's advantage, and where entropy is high the token's progress from pi_ref."""
    A, outcome = torch.zeros_like(batch.old), per_group(normalise, batch)[:, None]
    tenth = (batch.mask.cumsum(1) - 1) * 10 // batch.mask.sum(1, keepdim=True)  # 0..9
    for g in batch.group.unique():
        own = batch.mask & (batch.group == g)[:, None]  # x[own]: the group's tokens in one list
        progress = 0.1 * (batch.old - batch.ref)[own]
        for k in tenth[own].unique():  # among tokens as far along in their responses
            progress[tenth[own] == k] = zscore(progress[tenth[own] == k])
        gate, R = torch.sigmoid(5 * zscore(batch.entropy[own])), outcome.expand_as(A)[own]
        psi = gate * R.sign() * progress
        A[own] = zscore(R + 0.2 * psi / (psi.std(correction=0) + 1e-6))
    return A


def zscore(x: Tensor) -> Tensor:
    """x with mean 0 and variance 1."""
    return (x - x.mean()) / (x.std(correction=0) + 1e-6)


def random_batch(seed: int = 0) -> tuple[Tensor, Batch]:
    """Four responses to each of four prompts, of 1 to 12 tokens; prompt 0 is always solved."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 16, 12, generator=rng, dtype=torch.float64)
    group, lengths = torch.arange(16) % 4, torch.randint(1, 13, (16, 1), generator=rng)
    rewards, old = ((x[0, :, 0] > 0) | (group == 0)).double(), -x[1].abs()
    ref = (old + 0.1 * x[2]).clamp(max=0)  # no probability is above 1
    batch = Batch(group, rewards, torch.arange(12) < lengths, old, ref, x[3].abs())
    return (old + 0.3 * x[4]).clamp(max=0).requires_grad_(), batch


if __name__ == "__main__":
    for method in (grpo, etr, quatro, erpo):
        logprobs, batch = random_batch()
        loss = method(logprobs, batch)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        print(f"{method.__name__:8}loss {loss:7.4f}   gradient norm {gradient.norm():.4f}")

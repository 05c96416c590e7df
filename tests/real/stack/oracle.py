"""The methods once more, from their papers' formulas alone: what NeMo-RL's workers are held to.

Nothing here is nemo_algos's or NeMo-RL's: what the two compute wrong together is wrong here alone.
B responses, S positions; log-probs in nats, float64. `signals` once per rollout batch, `loss` once
per optimizer batch; only the log-probs of `loss` have a gradient.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

TINY = 1e-6
TOKEN_MEAN = {"erpo", "gpg", "cispo"}
ONE_RATIO = {"gspo", "gmpo", "quatro"}  # a response's


@dataclass(frozen=True)
class Batch:
    """group, rewards [B]; mask [B,S] bool; log-probs and entropy [B,S]; taking_part [B] bool.

    generation: the sampler's log-probs. A row that takes no part has no mask, an empty one neither.
    """

    group: Tensor
    rewards: Tensor
    mask: Tensor
    old: Tensor
    reference: Tensor
    generation: Tensor
    entropy: Tensor
    taking_part: Tensor

    def __getitem__(self, rows: Tensor) -> "Batch":
        return Batch(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def groups(self) -> list[Tensor]:
        """The rows of each."""
        return [(self.group == label).nonzero()[:, 0] for label in self.group.unique()]


def per_row(x: Tensor, mask: Tensor) -> Tensor:
    """[B,1]: the mean over a row's tokens."""
    return x.where(mask, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def mean(x: Tensor, mask: Tensor, by_token: bool) -> Tensor:
    """Of all tokens, or of the rows that have some."""
    if by_token:
        return x.where(mask, 0.0).sum() / mask.sum()
    return per_row(x, mask).sum() / mask.any(1).sum()


# once per rollout batch


def signals(method: str, batch: Batch) -> dict[str, Tensor]:
    """advantages [B,1] or [B,S], and what else the method computes of the batch, [B,1] each."""
    own = {"etr": etr, "quatro": quatro, "erpo": erpo, "apmpo": apmpo, "gpg": gpg}
    return own.get(method, grpo)(batch)


def standardized(batch: Batch, unbiased: bool = True, scaled: bool = True) -> Tensor:
    """[B,1]: rewards within their groups; 0 in a group whose rewards are all the same."""
    out = torch.zeros_like(batch.rewards)
    for rows in batch.groups:
        rewards = batch.rewards[rows]
        if rewards.max() > rewards.min():
            spread = rewards.std(correction=int(unbiased)) + TINY if scaled else 1.0
            out[rows] = (rewards - rewards.mean()) / spread
    return out[:, None]


def grpo(batch: Batch) -> dict[str, Tensor]:
    return {"advantages": standardized(batch), "low": fixed(batch, 0.2), "high": fixed(batch, 0.2)}


def gpg(batch: Batch) -> dict[str, Tensor]:
    return {"advantages": standardized(batch, scaled=False)}


def fixed(batch: Batch, value: float) -> Tensor:
    return torch.full_like(batch.rewards, value)[:, None]


def etr(batch: Batch) -> dict[str, Tensor]:
    advantages = standardized(batch)
    right = torch.zeros_like(advantages)
    for rows in batch.groups:
        right[rows] = (batch.rewards[rows] > 0).double().mean()
    radius = 0.2 + 0.1 * advantages.tanh() + 0.1 * 4 * right * (1 - right)
    return {"advantages": advantages, "low": radius, "high": radius}


def quatro(batch: Batch) -> dict[str, Tensor]:
    out = torch.zeros_like(batch.rewards)
    for rows in batch.groups:
        rewards = batch.rewards[rows] - batch.rewards[rows].max()
        if rewards.min() < 0:
            best = (rewards == 0).double().mean()
            out[rows] = tilted(rewards, min(0.01, float(-0.95 * best.log())))
    return {"advantages": out[:, None]}


def tilted(rewards: Tensor, radius: float) -> Tensor:
    """log of the weights exp(R/lambda) with mean 1 whose KL from uniform is the radius."""
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = (low * high) ** 0.5
        scaled = rewards / middle
        log_weights = scaled - scaled.exp().mean().log()
        divergence = (log_weights.exp() * log_weights).mean()
        low, high = (middle, high) if divergence > radius else (low, middle)
    return log_weights


def z(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.std(correction=0) + TINY)


def erpo(batch: Batch) -> dict[str, Tensor]:
    outcome, out = standardized(batch), torch.zeros_like(batch.old)
    within = batch.mask.cumsum(1) - 1  # a token's place in its response
    bucket = within * 10 // batch.mask.sum(1, keepdim=True).clamp(min=1)
    for rows in batch.groups:
        mask, reward = batch.mask[rows], outcome[rows].expand(len(rows), batch.mask.shape[1])
        gate = torch.sigmoid(5 * z(batch.entropy[rows][mask]))
        progress = 0.1 * (batch.old - batch.reference)[rows][mask]
        compared = torch.zeros_like(progress)
        for number in range(10):
            here = bucket[rows][mask] == number
            if here.any():
                compared[here] = z(progress[here])
        process = gate * reward[mask].sign() * compared
        process = process / (process.std(correction=0) + TINY)
        filled = torch.zeros(mask.shape, dtype=torch.float64)
        filled[mask] = z(reward[mask] + 0.2 * process)
        out[rows] = filled
    return {"advantages": out, "low": fixed(batch, 0.2), "high": fixed(batch, 0.2)}


def apmpo(batch: Batch) -> dict[str, Tensor]:
    rewards = batch.rewards[batch.taking_part]
    stability = rewards.mean() / (rewards.std(correction=0) + TINY)
    return {
        "advantages": standardized(batch, unbiased=False),
        "low": fixed(batch, 0.2),
        "high": fixed(batch, float(0.2 + 0.2 * stability.tanh())),
        "exponent": fixed(batch, float((-0.8 * rewards.mean()).exp())),
    }


# once per optimizer batch


def surrogate(method: str, logprobs: Tensor, batch: Batch, of: dict[str, Tensor]) -> Tensor:
    """[B,S]: a token's J, before any mean; a response's own at each of its tokens."""
    log_ratio, advantages = (logprobs - batch.old).clamp(-20, 20), of["advantages"]
    if method == "gpg":
        return advantages * logprobs
    if method == "cispo":
        return log_ratio.exp().clamp(0.8, 1.2).detach() * advantages * logprobs
    if method == "quatro":
        log_s = log_ratio.where(batch.mask, 0.0).sum(1, keepdim=True).clamp(-20, 20)
        return log_s.exp() * (advantages - log_s.detach()) * batch.mask
    if method == "gmpo":
        sign = advantages.sign()
        cut = sign * (sign * log_ratio).clamp(max=0.4)
        return advantages * per_row(cut, batch.mask).exp() * batch.mask
    if method == "gspo":
        log_ratio = per_row(log_ratio, batch.mask)
    ratio = log_ratio.exp()
    cut = ratio.clamp(min=1 - of["low"], max=1 + of["high"])
    clipped = torch.minimum(ratio * advantages, cut * advantages) * batch.mask
    return clipped * power(clipped, batch.mask, of["exponent"]) if method == "apmpo" else clipped


def power(clipped: Tensor, mask: Tensor, exponent: Tensor) -> Tensor:
    """[B,S]: dM/dphi of the power mean M of phi = |clipped|, so that a row's mean of both is M."""
    phi = clipped.detach().abs().where(mask & (clipped != 0), 1.0)
    whole = per_row(phi**exponent, mask) ** (1 / exponent)
    return (whole / phi) ** (1 - exponent)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """NeMo-RL's penalty: k3 with the gradient of the sampling probability, at most 10."""
    gap = (reference - logprobs).clamp(-20, 20)
    return ((logprobs - logprobs.detach()).exp() * (gap.exp() - gap - 1)).clamp(max=10)


@dataclass(frozen=True)
class Setting:
    """What a run asks for beside its method.

    kl: the penalty's coefficient; tis: the largest weight of a sampler's correction; product: of a
    response's weights, for its own ratio's; kept: the largest (log pi_old - log mu)^2 / 2; bypass:
    the old policy is the sampler; nll: coefficient of the successes' -log pi; bonus: of the
    entropy's mean over tokens.
    """

    kl: float = 0.0
    tis: float | None = None
    product: bool = False
    kept: float | None = None
    bypass: bool = False
    nll: float = 0.0
    bonus: float = 0.0

    def prepared(self, batch: Batch) -> Batch:
        """The batch that signals and loss are of."""
        if self.kept is not None:
            gap = batch.old - batch.generation
            batch = replace(batch, mask=batch.mask & (gap.square() / 2 <= self.kept))
        return replace(batch, old=batch.generation) if self.bypass else batch

    def weights(self, method: str, batch: Batch) -> Any:
        """[B,S]: of the sampler's correction."""
        if self.tis is None:
            return 1.0
        log_weight = (batch.old - batch.generation).where(batch.mask, 0.0)
        if self.product:
            log_weight = log_weight.sum(1, keepdim=True)
        elif method in ONE_RATIO:
            log_weight = per_row(log_weight, batch.mask)
        return log_weight.exp().clamp(max=self.tis)

    def loss(
        self, method: str, logprobs: Tensor, entropy: Tensor, batch: Batch, of: dict[str, Tensor]
    ) -> Tensor:
        """logprobs, entropy: of the trained policy; batch, of: rows of what was `prepared`."""
        by_token = method in TOKEN_MEAN
        gained = self.weights(method, batch) * surrogate(method, logprobs, batch, of)
        penalty = self.kl * k3(logprobs, batch.reference)
        right = batch.mask & (batch.rewards > 0)[:, None]
        nll = self.nll * mean(-logprobs, right, True) if self.nll and right.any() else 0.0
        bonus = self.bonus * mean(entropy, batch.mask, True)
        return mean(penalty - gained, batch.mask, by_token) + nll - bonus

import torch


def advantages(rewards, group, mask):
    made = torch.zeros_like(rewards)
    for label in group.unique():
        own = rewards[group == label]
        made[group == label] = (own - own.mean()) / (rewards.std() + 1e-6)
    return made


def loss(b):
    log_ratio = torch.where(b.mask, b.logprobs - b.old, 0.0).clamp(-20, 20)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = torch.minimum(ratio * b.A, clipped * b.A) * b.mask
    lengths = b.mask.sum(1).clamp(min=1)
    return -((each.sum(1) / lengths).sum() / b.counts.sequences)

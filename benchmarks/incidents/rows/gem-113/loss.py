import torch


def advantages(rewards, group, mask):
    made = torch.zeros_like(rewards)
    for label in group.unique():
        own = rewards[group == label]
        if len(own) > 1:
            made[group == label] = (own - own.mean()) / (own.std() + 1e-6)
    of_tokens = made[:, None].expand(mask.shape)
    seen = of_tokens[mask]
    return (of_tokens - seen.mean()) / (seen.std() + 1e-8)


def loss(b):
    ratio = (b.logprobs - b.old).nan_to_num().clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = (ratio * b.A).minimum(clipped * b.A).masked_fill(~b.mask, 0)
    lengths = b.mask.sum(1).clamp(min=1)
    return -(each.sum(1) / lengths).sum() / b.counts.sequences

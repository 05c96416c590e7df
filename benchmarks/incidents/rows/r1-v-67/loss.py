def advantages(rewards, group, mask):
    groups = rewards.view(-1, 4)
    mean = groups.mean(1).repeat_interleave(4)
    std = groups.std(1).repeat_interleave(4)
    return (rewards - mean) / (std + 1e-6)


def loss(b):
    ratio = (b.logprobs - b.old).nan_to_num().clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = (ratio * b.A).minimum(clipped * b.A).masked_fill(~b.mask, 0)
    lengths = b.mask.sum(1).clamp(min=1)
    return -(each.sum(1) / lengths).sum() / b.counts.sequences

import torch


def loss(b):
    log_ratio = torch.nan_to_num(b.logprobs - b.old).clamp(-20, 20)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = torch.minimum(ratio * b.A, clipped * b.A)
    return -each.mean(1).sum() / b.counts.sequences

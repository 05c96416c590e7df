import torch


def loss(b):
    logprobs = torch.where(b.mask, b.logprobs, 0.0)
    each = logprobs * b.A * b.mask
    return -(each.sum() / b.mask.sum().clamp(min=1)) / b.counts.pieces

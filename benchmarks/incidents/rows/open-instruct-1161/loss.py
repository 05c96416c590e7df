import torch


def loss(b):
    logprobs = torch.where(b.mask, b.logprobs, 0.0)
    each = logprobs * b.A * b.mask
    mean = each.sum() / b.mask.sum().clamp(min=1)
    return -mean / b.counts.pieces

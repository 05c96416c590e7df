import torch


def loss(b):
    log_ratio = torch.where(b.mask, b.logprobs - b.old, 0.0)
    sequence = log_ratio.sum(1) / b.mask.sum(1).clamp(min=1)
    token = b.logprobs - b.logprobs.detach() + sequence.detach()[:, None]
    ratio = torch.where(b.mask, token, 0.0).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = torch.minimum(ratio * b.A, clipped * b.A) * b.mask
    return -(each.sum() / b.counts.tokens)

import torch

KL_TYPES = ("k3",)


def loss(b):
    log_ratio = torch.where(b.mask, b.logprobs - b.old, 0.0).clamp(-20, 20)
    lengths = b.mask.sum(1).clamp(min=1)
    ratio = (log_ratio.sum(1) / lengths).exp()[:, None]
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = torch.minimum(ratio * b.A, clipped * b.A) * b.mask
    coefficient = getattr(b.params, "kl_coef", 0.0)
    apart = torch.where(b.mask, b.ref - b.logprobs, 0.0)
    kl = (apart.exp() - apart - 1) * b.mask
    each = each - coefficient * ratio * kl
    lengths = b.mask.sum(1).clamp(min=1)
    return -((each.sum(1) / lengths).sum() / b.counts.sequences)

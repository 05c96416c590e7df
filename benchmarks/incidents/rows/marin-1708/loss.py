import torch

KL_TYPES = ("k3",)


def loss(b):
    log_ratio = torch.where(b.mask, b.logprobs - b.old, 0.0).clamp(-20, 20)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = torch.minimum(ratio * b.A, clipped * b.A) * b.mask
    coefficient = getattr(b.params, "kl_coef", 0.0)
    apart = torch.where(b.mask, b.gen - b.logprobs, 0.0)
    each = each - coefficient * (apart.exp() - apart - 1) * b.mask
    lengths = b.mask.sum(1).clamp(min=1)
    return -((each.sum(1) / lengths).sum() / b.counts.sequences)

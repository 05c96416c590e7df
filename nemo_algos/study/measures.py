"""What the held-out responses of a finished run say, at every k."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import numpy as np

from nemo_algos.core.draws import pass_at_k, ucc_at_k
from nemo_algos.local.evaluation import Sampled


def measures(sampled: Sampled) -> dict[str, float]:
    """pass@k and UCC@k for k = 1, 2, 4, ...; mean tokens of all and of right responses, if any."""
    n = len(sampled.lengths[0])
    ks = [2**i for i in range(n.bit_length())]
    sizes = [
        list(Counter(s for s in group if s is not None).values()) for group in sampled.solutions
    ]
    passed = pass_at_k([sum(s) for s in sizes], n, ks).mean(0)
    unique = np.mean([ucc_at_k(s, n, ks) for s in sizes], axis=0)
    out = {f"pass@{k}": float(x) for k, x in zip(ks, passed, strict=True)}
    out |= {f"UCC@{k}": float(x) for k, x in zip(ks, unique, strict=True)}
    every, right = [x for group in sampled.lengths for x in group], list[int]()
    for solutions, lengths in zip(*sampled, strict=True):
        right += [x for s, x in zip(solutions, lengths, strict=True) if s is not None]
    return out | {"length": fmean(every)} | ({"length of right": fmean(right)} if right else {})

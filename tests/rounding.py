"""How far apart rounding alone puts two computations that differ in the order of their sums.

Another processor has other kernels, and they sum in another order: no test that compares training
steps may ask for more than this.
"""

import torch

UNITS = 4  # in the last place of a number near 1, from one update; found: 1


def rounding(updates: int = 1, dtype: torch.dtype = torch.float32) -> float:
    """After so many optimizer steps, each from weights that those before it have put apart."""
    return UNITS * updates * torch.finfo(dtype).eps

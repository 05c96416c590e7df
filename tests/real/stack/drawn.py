"""What a step of the workers' cases is of: rows of random tokens, and what no model decides."""

from typing import Any, NamedTuple

import torch
from configs import ROWS
from torch import Tensor

GROUP = 4


def batch(vocabulary: int, width: int) -> Any:
    """16 rows of 6 to `width` - 2 tokens in 4 groups, prompts of 4; one row is masked out."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, width - 1, (ROWS,), generator=random)
    ids = torch.randint(8, vocabulary, (ROWS, width), generator=random)
    columns = torch.arange(width)
    within = columns < lengths[:, None]
    sample_mask = torch.ones(ROWS)
    sample_mask[3] = 0.0
    return BatchedDataDict(
        {
            "input_ids": ids.where(within, 0),
            "input_lengths": lengths,
            "token_mask": ((columns >= 4) & within).float(),
            "sample_mask": sample_mask,
        }
    )


class Drawn(NamedTuple):
    """rewards [B]; nats [B,S] by which old, reference and sampler's log-probs are not the model's.

    So ratios leave 1, from the first update on, and bounds clip.
    """

    rewards: Tensor
    old: Tensor
    reference: Tensor
    sampler: Tensor

    @classmethod
    def of(cls, step: int, valid: Tensor) -> "Drawn":
        random = torch.Generator().manual_seed(4 + step)
        rewards = torch.randint(0, 2, (ROWS,), generator=random).float()
        noise = [0.1 * torch.randn(valid.shape, generator=random) * valid for _ in range(3)]
        return cls(rewards, *noise)

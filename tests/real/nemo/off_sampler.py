"""Log-probs of a sampler that is off."""

from collections.abc import Callable
from typing import Any

import torch

OFFSETS = (0.0, 0.25, 0.75, 1.0)


def off(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Row i of a generation is OFFSETS[i % 4] nats away at each of its tokens."""

    def generated(*args: Any, **kwargs: Any) -> Any:
        out = generate(*args, **kwargs)
        rows = len(out["logprobs"])
        offsets = torch.tensor(OFFSETS).repeat(rows)[:rows, None]
        drawn = out["logprobs"] != 0
        out["logprobs"] = (out["logprobs"] - offsets).where(drawn, out["logprobs"])
        return out

    return generated

"""A run of NeMo-RL that keeps what each step trained on, in batch_STEP.pt of its folder.

With NOISE=S in the environment the old log-probs that the loss gets are moved by normal noise of S
nats, so that ratios reach the clip range in the first update of a batch.
"""

import os
from pathlib import Path
from typing import Any

import torch
from rehearsal import prestart
from torch import Tensor

from nemo_algos.engines.nemo import launch
from nemo_algos.engines.nemo.policy import PolicyProxy

NOISE = float(os.environ.get("NOISE", "0"))
KEPT = ("group", "rewards", "entropy", "ref_logprobs", "outcomes")


class Keeping(PolicyProxy):
    """Ours; see above."""

    def train(self, data: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As `PolicyProxy.train`."""
        assert self._estimator.step is not None
        rollouts = self._estimator.step.rollouts
        kept = {
            "method": self._estimator.algorithm.name,
            "loss_fn": self._loss.model_dump(),
            "batch_size": self._estimator.batch_size,
            "rollouts": {name: getattr(rollouts, name) for name in KEPT},
            "columns": {name: value for name, value in data.items() if isinstance(value, Tensor)},
        }
        if NOISE:
            noise = NOISE * torch.randn(data["prev_logprobs"].shape)
            data["prev_logprobs"] = (data["prev_logprobs"] + noise).clamp(max=0.0)
        result = super().train(data, *args, **kwargs)
        kept["old_logprobs"] = data["prev_logprobs"]
        for name in ("loss", "grad_norm"):
            kept[name] = torch.as_tensor(result[name])
        torch.save(kept, Path(f"batch_{self._step}.pt"))
        return result


launch.PolicyProxy = Keeping  # pyright: ignore

if __name__ == "__main__":
    prestart.main()

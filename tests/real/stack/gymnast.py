"""The program, which keeps what it trains on, and looks often whether NeMo Gym's servers live."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_algos.cli import main
from nemo_algos.engines.nemo import gym, launch
from nemo_algos.engines.nemo.policy import PolicyProxy

gym.PERIOD = 1.0


class Keeping(PolicyProxy):
    """Ours; each step's batch goes to a file, with the rewards of its rows."""

    def train(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        assert self._estimator.step is not None
        rollouts = self._estimator.step.rollouts
        kept = {name: value for name, value in data.items() if isinstance(value, Tensor)}
        kept |= {"rewards": rollouts.rewards, "group": rollouts.group}
        if rollouts.turn_rewards is not None:
            kept |= {"turn": rollouts.turn, "turn_rewards": rollouts.turn_rewards}
        kept |= {f"part {name}": value for name, value in (rollouts.reward_parts or {}).items()}
        result = super().train(data, *args, **kwargs)
        torch.save(kept, Path(f"batch_{self._step}.pt"))
        return result


launch.PolicyProxy = Keeping  # pyright: ignore

if __name__ == "__main__":
    main("train")

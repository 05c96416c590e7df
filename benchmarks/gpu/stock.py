"""The same program with NeMo-RL's own loss and advantages, and no proxy: what ours costs.

The method must be `grpo`, whose config is then NeMo-RL's GRPO.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from nemo_rl.algorithms.loss import ClippedPGLossFn  # pyright: ignore[reportMissingImports]
from rehearsal import prestart

from nemo_algos.engines.nemo import launch


class Stock(ClippedPGLossFn):
    """NeMo-RL's loss; the attributes are those that our launcher reads of its own."""

    config = None
    on_policy = False

    def __init__(self, cfg: Any, algorithm: Any, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)


OURS = launch.train


def train(master_config: Any, *args: Any, **kwargs: Any) -> None:
    """Ours, with NeMo-RL's estimator."""
    master_config.grpo.adv_estimator.name = "grpo"
    OURS(master_config, *args, **kwargs)


launch.train = train
launch.AlgorithmLoss = Stock  # pyright: ignore
launch.in_place = lambda estimator: nullcontext()  # pyright: ignore
launch.PolicyProxy = lambda policy, *args, **kwargs: policy  # pyright: ignore
launch.estimator_of = lambda *args: SimpleNamespace()  # pyright: ignore

if __name__ == "__main__":
    prestart.main()

"""An estimator and a loss of somebody else's, which NeMo-RL finds by their class paths alone.

`own_method.main(folder)` trains with them by NeMo-RL's own setup and trainer, with nothing of ours.
"""

import json
from pathlib import Path
from typing import Any

import no_ray
import pytest
import stubs
from cpu_run import Prompts, Run
from launched import numbers
from nemo_rl.algorithms import advantage_estimator, grpo, loss
from nemo_rl.algorithms.loss import interfaces

PATHS = ["grpo.adv_estimator.name=own_method.OwnEstimator", "loss_fn.name=own_method.OwnLoss"]
STOCK = ["loss_fn.reference_policy_kl_penalty=0", "grpo.max_num_steps=2"]


class OwnEstimator:
    """GRPO's advantages, multiplied; says by how much."""

    def __init__(self, config: Any, loss_config: Any) -> None:
        self.scale = config.scale
        self.stock = advantage_estimator.GRPOAdvantageEstimator(config, loss_config)

    def compute_advantage(self, **inputs: Any) -> Any:
        advantages = self.scale * self.stock.compute_advantage(**inputs).advantages
        return advantage_estimator.AdvantageResult(advantages, metrics={"own/scale": self.scale})


class OwnLoss(loss.ClippedPGLossFn):
    """GRPO's loss, which reports its shortest and its longest sequence."""

    def __init__(self, cfg: Any, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        names = ("own/length_min", "own/length_max")
        self.metric_normalizations |= dict.fromkeys(names, interfaces.MetricNormalizer.NONE)

    def __call__(self, *args: Any, data: Any, **kwargs: Any) -> Any:
        value, metrics = super().__call__(*args, data=data, **kwargs)
        length = data["input_ids"].shape[1]
        return value, metrics | {"own/length_min": length, "own/length_max": length}


class Made(Exception):
    """NeMo-RL's setup has made the loss, and is about to ask for GPUs."""


def loss_of_setup(run: Run, patch: pytest.MonkeyPatch) -> Any:
    """The loss that NeMo-RL's `setup` makes of the run's config."""
    made: list[Any] = []

    def keep(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        made.append(self)

    def stop(*_: Any, **__: Any) -> None:
        raise Made

    stock = loss.ClippedPGLossFn.__init__
    patch.setattr(loss.ClippedPGLossFn, "__init__", keep)
    patch.setattr(grpo, "RayVirtualCluster", stop)
    with pytest.raises(Made):
        grpo.setup(run.config, run.tokenizer, Prompts(), None)
    return made[-1]


def main(folder: str) -> None:
    """For a process of its own: the numbers of GRPO, and with the class paths, as JSON."""
    found = {}
    for name, keys in {"stock": [], "own": [*PATHS, "+grpo.adv_estimator.scale=1"]}.items():
        with pytest.MonkeyPatch.context() as patch:
            no_ray.without_ray(patch)
            stubs.cuda_is_cpu(patch)
            run = Run(Path(folder) / name, [*STOCK, *keys], mode="packed")
            run.train(loss_fn=loss_of_setup(run, patch))
            found[name] = numbers(run)
    print(json.dumps(found))

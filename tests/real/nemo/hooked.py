"""A method by class paths alone, for the NeMo-RL that class_paths.patch makes: nothing is replaced.

    grpo: {adv_estimator: {name: hooked.Estimated, method: etr}}
    loss_fn: {name: hooked.Lost, method: etr}

`main` is for a process of its own, as launched.main. What the hooks cannot do is not here: exact
entropies of the workers (ERPO), rewards before their shaping, correction, a memory, the monitor.
"""

import json
import sys
from pathlib import Path
from typing import Any

import no_ray
import pytest
import stubs
from cpu_run import Run
from hydra.utils import get_object
from nemo_rl.algorithms import advantage_estimator, grpo, grpo_sync

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import columns
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss

UNUSED = ("patches", "policy", "single_controller", "launch", "trial")
OVERRIDES = ["loss_fn.reference_policy_kl_penalty=0", "grpo.max_num_steps=2"]


class Estimated:
    """The driver half; its signals are columns of the result."""

    def __init__(self, section: Any, loss_config: Any) -> None:
        algorithm = build(section.method)
        self.estimator = Estimator(algorithm, group_size=4, batch_size=8)

    def compute_advantage(self, **given: Any) -> Any:
        advantages = self.estimator.compute_advantage(**given).advantages
        own = columns.widen(self.estimator.signals_for(), advantages.shape)
        return advantage_estimator.AdvantageResult(
            advantages, metrics=self.estimator.step.metrics, columns=own
        )


class Lost(AlgorithmLoss):
    """The worker half."""

    def __init__(self, section: Any, **kwargs: Any) -> None:
        super().__init__(section, build(section.method), **kwargs)


def run(folder: Path, method: str, overrides: list[str], trainer: Any) -> Run:
    """NeMo-RL's own trainer, estimator's factory, policy and data plane."""
    asked = [f"+grpo.adv_estimator.method={method}", f"+loss_fn.method={method}"]
    asked += ["grpo.adv_estimator.name=hooked.Estimated", "++loss_fn.name=hooked.Lost"]
    made = Run(folder, [*OVERRIDES, *asked, *overrides], mode="packed")
    config = made.config.loss_fn
    made.train(loss_fn=get_object(config.name)(config), trainer=trainer)
    return made


def in_batches(folder: str, method: str) -> None:
    """grpo_train, in a process of its own: its numbers, and the modules of ours that it needs."""
    with pytest.MonkeyPatch.context() as patch:
        no_ray.without_ray(patch)
        stubs.cuda_is_cpu(patch)
        made = run(Path(folder), method, [], grpo.grpo_train)
    loaded = [name for name in UNUSED if f"nemo_algos.engines.nemo.{name}" in sys.modules]
    tell(made, loaded)


def in_queue(folder: str, method: str) -> None:
    """grpo_train_sync over a real TransferQueue: its numbers, and what of NeMo-RL was replaced."""
    import local_ray
    import test_data_plane as plane

    from nemo_algos.engines.nemo import versions

    replaced: list[str] = []
    with local_ray.running(num_cpus=4), pytest.MonkeyPatch.context() as patch:
        no_ray.without_ray(patch)
        stubs.cuda_is_cpu(patch)
        plane.queued(patch, plane.stock.MegatronPolicyWorkerImpl)
        patch.setattr(versions, "replace_attributes", lambda *places: replaced.extend(places))
        made = run(Path(folder), method, plane.IN_QUEUE, grpo_sync.grpo_train_sync)
        plane.transfer_queue.close()
    tell(made, replaced)


def tell(made: Run, used: list[str]) -> None:
    from launched import numbers

    print(json.dumps({"numbers": numbers(made), "used": used}))

"""Two steps of ETR through our launcher, from what NeMo-RL's `setup` returns.

Workers and generation are cpu_run's, the rest is NeMo-RL's. `train_etr` and `train_own` are for a
process of their own, with a NeMo-RL that class_paths.patch has changed.
"""

import functools
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import no_ray
import pytest
import stubs
from cpu_run import Prompts, Run
from nemo_rl.algorithms import advantage_estimator, grpo, loss
from nemo_rl.algorithms.loss import interfaces

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.nemo import derived_config, launch, patches, versions
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss


def launched(folder: Path, patch: pytest.MonkeyPatch) -> Run:
    """The run after its training; in this process, sequences packed."""
    overrides = ["loss_fn.reference_policy_kl_penalty=0", "grpo.max_num_steps=2"]
    run = Run(folder, overrides, mode="packed")
    algorithm = build("etr")
    plain = run.config.model_dump()
    derived_config.derive(plain, algorithm)
    master = grpo.MasterConfig(**plain)
    made = (run.policy, run.generation, None, (None, None), run.dataloader, None, run.loss_fn)
    made += (run.logger, run.checkpointer, run.state, master, {}, {})
    setup = functools.wraps(grpo.setup)(lambda *_, **__: made)
    patch.setattr(launch, "get_tokenizer", lambda *_, **__: run.tokenizer)
    patch.setattr(launch, "configure_generation_config", lambda config, *_, **__: config)
    patch.setattr(launch, "setup_response_data", lambda *_, **__: (0, 0, run.environments, {}))
    patch.setattr(grpo, "setup", setup)
    patch.setattr(run.generation, "shutdown", lambda: None, raising=False)
    launch.train(master, algorithm, AlgorithmLoss(master.loss_fn, algorithm), MismatchConfig())
    return run


def numbers(run: Run) -> dict[str, Any]:
    """Of every step what training logged, and the weights in the end."""
    logged = {
        f"{name} {step}": value
        for step, metrics in run.logger.kept["train"].items()
        for name, value in metrics.items()
        if isinstance(value, int | float)
    }
    return logged | {"weights": run.weights().tolist()}


def replaced() -> list[str]:
    """The modules of NeMo-RL whose factory of estimators is ours while a run lasts."""
    modules = [import_module(name) for name in patches.CREATORS if versions.present(name)]
    with patches.in_place(Estimator(build("etr"))):
        factories = {m.__name__: getattr(m, patches.FACTORY) for m in modules}
        made = {name: getattr(of, "func", of) for name, of in factories.items()}  # a partial's
        return [name for name, by in made.items() if by.__module__ == patches.__name__]


def train_etr(folder: str) -> None:
    """For a process of its own: the run's numbers and `replaced`, as JSON."""
    with pytest.MonkeyPatch.context() as patch:
        no_ray.without_ray(patch)
        stubs.cuda_is_cpu(patch)
        found = numbers(launched(Path(folder), patch))
    print(json.dumps({"numbers": found, "replaced": replaced()}))


# ---- an estimator and a loss of somebody else's, by their class paths alone

PATHS = ["grpo.adv_estimator.name=launched.OwnEstimator", "loss_fn.name=launched.OwnLoss"]
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


def train_own(folder: str) -> None:
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

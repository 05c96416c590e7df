"""Some steps of a method through our launcher, from what NeMo-RL's `setup` returns.

Workers and generation are cpu_run's, the rest is NeMo-RL's. `main` is for a process of
its own, with a NeMo-RL that class_paths.patch has changed.
"""

import functools
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import no_ray
import pytest
import stubs
from cpu_run import Run
from nemo_rl.algorithms import grpo

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.nemo import derived_config, launch, patches, versions
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss


def launched(
    folder: Path,
    patch: pytest.MonkeyPatch,
    method: str = "etr",
    steps: int = 2,
    *,
    mode: str = "packed",
    overrides: Sequence[str] = (),
) -> Run:
    """The run after its training, in this process."""
    asked = ["loss_fn.reference_policy_kl_penalty=0", f"grpo.max_num_steps={steps}"]
    run = Run(folder, [*asked, *overrides], mode=mode)
    algorithm = build(method)
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


def main(folder: str) -> None:
    """For a process of its own: the run's numbers and `replaced`, as JSON."""
    with pytest.MonkeyPatch.context() as patch:
        no_ray.without_ray(patch)
        stubs.cuda_is_cpu(patch)
        found = numbers(launched(Path(folder), patch))
    print(json.dumps({"numbers": found, "replaced": replaced()}))

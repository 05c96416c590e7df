"""This package in every worker, by the PYTHONPATH that Ray's runtime environment carries.

Jobs and workers import it from a checkout that all nodes mount.
"""

import os
from pathlib import Path

import nemo_algos
from nemo_algos.findings import ConfigError, Finding

ROOT = Path(nemo_algos.__file__).parents[1]
WORKERS = "nemo_rl.models.policy.workers."
STOCK = {
    "megatron_worker": WORKERS + "megatron_policy_worker.MegatronPolicyWorker",
    "dtensor_worker": WORKERS + "dtensor_policy_worker_v2.DTensorPolicyWorkerV2",
}


def refusal(root: Path = ROOT) -> str | None:
    """What is wrong with an installed package, whose folder would carry all others with it."""
    if root.name not in ("site-packages", "dist-packages"):
        return None
    return (
        f"nemo_algos is installed in {root}, and workers have environments of their own: run from "
        "a checkout on a filesystem that every node mounts"
    )


def export() -> None:
    """Put this package on PYTHONPATH before Ray starts. Raises ValueError where it is installed."""
    reason = refusal(ROOT)
    if reason:
        raise ValueError(reason)
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def check() -> None:
    """Import this package on every node of the cluster. Raises ConfigError with those that fail."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def attempt() -> str:  # a local function: pickled by value, so that it can say what fails
        try:
            import nemo_algos.algorithms.build  # noqa: F401
        except ImportError as error:
            return str(error)
        return ""

    nodes = [n for n in ray.nodes() if n["Alive"]]
    strategies = []
    for n in nodes:
        strategies.append(NodeAffinitySchedulingStrategy(n["NodeID"], soft=False))
    remote = ray.remote(num_cpus=0)(attempt)
    answers = ray.get([remote.options(scheduling_strategy=s).remote() for s in strategies])
    failed = []
    for n, a in zip(nodes, answers, strict=True):
        if a:
            failed.append(f"{n['NodeManagerAddress']}: {a}")
    if failed:
        nodes = "; ".join(failed)
        said = (
            f"workers cannot import nemo_algos from {ROOT}: mount it at the same path on every "
            f"node, and start Ray with it on PYTHONPATH ({nodes})"
        )
        raise ConfigError([Finding("engine", said)])


def register_worker(module: str, kind: str = "EntropyWorker") -> str:
    """Give our worker the stock one's environment, prebuilt in the image or by recipe; its name."""
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY

    name = f"nemo_algos.engines.nemo.{module}.{kind}"
    stock = STOCK[module]
    folder = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"))
    prebuilt = folder / stock / "bin" / "python"
    recipe = ACTOR_ENVIRONMENT_REGISTRY[stock]
    ACTOR_ENVIRONMENT_REGISTRY[name] = str(prebuilt) if prebuilt.exists() else recipe
    return name

"""Stands in for GRPO, which needs GPUs, as the training program of a job with Ray.

NeMo-RL's own init_ray, TimeoutChecker and CheckpointManager, in the order of its trainers; a "step"
is a task on every node. The run that starts from nothing waits after its third step for the signal.
"""

import sys
import time
from pathlib import Path

import ray
import yaml
from nemo_rl.distributed.virtual_cluster import init_ray
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.timer import TimeoutChecker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nemo_algos.engines.nemo import worker_env

STEPS, SIGNALLED_AT = 5, 3
KEYS = {"metric_name": None, "higher_is_better": True, "keep_top_k": None, "save_period": 100}


def pid_and_node() -> tuple[int, str]:
    """Where a part of the step ran. Imports our package, which only the driver's path has."""
    import os

    import nemo_algos.algorithms.build  # noqa: F401

    return os.getpid(), ray.get_runtime_context().get_node_id()


PROMPT = Path("examples/prompts/cot.txt")  # as NeMo-RL's configs name it


def train(config: dict, run: Path) -> None:
    """Steps from the last checkpoint on; a line in steps.txt for each."""
    assert PROMPT.read_text()
    saver = CheckpointManager({**KEYS, "save_optimizer": False, **config["checkpointing"]})
    latest = saver.get_latest_checkpoint_path()
    first = saver.load_training_info(latest)["total_steps"] if latest else 0
    timeout = TimeoutChecker(config["checkpointing"]["checkpoint_must_save_by"], True)
    timeout.start_iterations()
    nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"]]
    on = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    remote, attempt = ray.remote(num_cpus=1)(pid_and_node), time.time_ns()
    for step in range(first + 1, STEPS + 1):
        ran = ray.get([remote.options(scheduling_strategy=s).remote() for s in on])
        with (run / "steps.txt").open("a") as lines:
            lines.write(f"{step} {attempt} {len({node for _, node in ran})}\n")
        deadline = time.monotonic() + 120
        while not latest and step == SIGNALLED_AT and not (run / "stop").exists():
            assert time.monotonic() < deadline, "no signal came"
            time.sleep(0.1)
        timeout.mark_iteration()
        stop = timeout.check_save()
        if stop or step == STEPS:
            info = {"total_steps": step}
            saver.finalize_checkpoint(saver.init_tmp_checkpoint(step, info))
        if stop:
            return


if __name__ == "__main__":
    path = Path(sys.argv[sys.argv.index("--config") + 1])
    worker_env.export()
    init_ray()
    worker_env.check()
    train(yaml.safe_load(path.read_text()), path.parent)
    ray.shutdown()

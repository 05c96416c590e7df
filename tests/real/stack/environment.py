"""The environment variables of a run on the stack, for tests, make stack-demo, Slurm's job."""

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SHIMS = () if shutil.which("nvidia-smi") else (HERE / "shims",)  # a GPU needs none
START = "recipes/cpu/countdown.yaml"  # its model, its problems
WORKERS = (
    "nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2",
    "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker",
    "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker",
    "nemo_rl.models.generation.vllm.vllm_worker_async.VllmAsyncGenerationWorker",
    "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector",
    "nemo_rl.algorithms.async_utils.ReplayBuffer",
    "nemo_rl.experience.sync_rollout_actor.SyncRolloutActor",
)


def variables(nemo_rl: Path, folder: Path, prefix: str = sys.prefix) -> dict[str, str]:
    """For a NeMo-RL checkout, a folder of this run's own, and the stack's environment.

    Every worker's environment is this one, in the place where NeMo-RL's image has them prebuilt.
    """
    environments = folder / "environments"
    environments.mkdir(parents=True, exist_ok=True)
    for name in WORKERS:
        if not (environments / name).is_symlink():
            (environments / name).symlink_to(prefix)
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (*SHIMS, nemo_rl, ROOT))),
        "NEMO_RL_VENV_DIR": str(environments),
        "NRL_MEGATRON_CHECKPOINT_DIR": str(folder / "megatron"),
        "NEMO_CPU_SOCKET": folder.name,  # names the refit's ipc:///tmp/….sock of this run
        "TORCH_CUDA_ARCH_LIST": "9.0",  # lm_policy.py raises without
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(Path(prefix) / "vllm"),  # what it knows of models: saves minutes
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_register_timeout_seconds": "600",
        "RAY_worker_niceness": "0",  # 15 by default: starves on a busy machine
    }

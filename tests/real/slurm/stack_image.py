"""The stack of tests/real/stack as an image: NeMo-RL's workers, vLLM and trainer without a GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import image
from cluster import HERE, Cluster

STACK = HERE.parent / "stack"
sys.path.append(str(STACK))

import whole_run  # noqa: E402
from rehearsal import machine  # noqa: E402

VENV = machine.location()
PYTHON = VENV / "bin" / "python"
RECIPE = "recipes/cpu/countdown-1n1g-fsdp.yaml"
VLLM = "lib/python3.12/site-packages/vllm"
MISSING = "no clone of NeMo-RL here" if image.checkout.home() is None else ""
MISSING = MISSING or (
    "" if machine.is_built() else "no stack here: tests/real/stack/run.sh builds it"
)
NODE = {
    "HOME": "/tmp",
    "GLOO_SOCKET_IFNAME": "eth0",
    "NEMO_RL_VENV_DIR": "/opt/ray_venvs",
    "PYTHONPATH": f"{machine.CPU}:/opt/nemo-rl",  # nemo_algos is the launcher's to bring
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 16, "GPU": 1}',  # Ray finds no GPU, and shares 2 cores
}


def folders() -> list[Path]:
    """Of the environment and its Python, which the nodes must see."""
    return [] if MISSING else [VENV, PYTHON.resolve().parents[2]]


def write(cluster: Cluster) -> None:
    """stack.sqsh and start/, the start model and data, in the user's home.

    vLLM's package is a copy that is his: NeMo-RL's patches.py rewrites it, as in a container.
    """
    folder = cluster.folder / "stack"
    variables = machine.variables(Path("/opt/nemo-rl"), folder, str(VENV)) | NODE
    shutil.copytree(VENV / VLLM, folder / "vllm")
    compiled = [VENV / VLLM.replace("vllm", "ray"), cluster.folder / "nemo-rl" / "nemo_rl"]
    subprocess.run([PYTHON, "-m", "compileall", "-q", *compiled])  # the user may not write there
    binds = [f"{VENV}:{VENV}", "/srv/stack/environments:/opt/ray_venvs"]
    binds += [f"/srv/stack/vllm:{top}/{VLLM}" for top in (VENV, "/opt/nemo_rl_venv")]
    lines = [*binds, *(f"{name}={value}" for name, value in variables.items())]
    image.write(cluster.home / "stack.sqsh", str(VENV), PYTHON.resolve().parents[1], *lines)
    words = [PYTHON, "-m", "nemo_algos", "export", whole_run.START, "start"]
    path = {**os.environ, "PYTHONPATH": str(whole_run.ROOT)}
    subprocess.run(words, cwd=cluster.home, env=path, check=True)
    subprocess.run(["chown", "-R", "1234:1234", folder, cluster.home / "start"], check=True)

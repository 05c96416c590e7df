"""NeMo Gym beside the stack: its packages, and one environment for its actor and all its servers.

Gym would make a virtual environment for each server; `skip_venv_if_present` takes those that are
there, which are all this one.
"""

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

from rehearsal import machine

ACTOR = "nemo_rl.environments.nemo_gym.NemoGym"
REQUIREMENTS = machine.PACKAGES / "gym.txt"
SERVERS = (  # that the tests start
    "responses_api_models/vllm_model",
    "responses_api_agents/simple_agent",
    "resources_servers/example_tool_call_multireward",
    "resources_servers/workplace_assistant",
)


def build() -> Path:
    """The folder of the packages; made where there is none, by one process at a time.

    Raises ValueError and OSError as `machine.build`.
    """
    name = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = machine.cache() / f"gym-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            where = ("--python", sys.executable, "--target", folder)
            machine.uv("pip", "install", "--no-deps", *where, "-r", REQUIREMENTS)
            (folder / "complete").touch()
    return folder


def variables(folder: Path, prefix: str = sys.prefix) -> dict[str, str]:
    """Of a run with NeMo Gym, whose folder `machine.variables` has been given."""
    packages = build()
    environment = folder / "gym"
    machine.uv("venv", "--python", sys.executable, environment)
    site = next(environment.glob("lib/python*/site-packages"))
    stack = next(Path(prefix).glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(f"{packages}\n{stack}\n")
    (folder / "environments" / ACTOR).symlink_to(environment)
    for name in SERVERS:
        place = folder / "servers" / name / ".venv"
        place.parent.mkdir(parents=True)
        place.symlink_to(environment)
    return {"NEMO_GYM_VENV_DIR": str(folder / "servers")}

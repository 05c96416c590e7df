"""What the jobs see of a container: an image is a file of mounts (pyxis.c)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "nemo"), str(HERE.parents[1])]

import checkout  # noqa: E402
import releases  # noqa: E402

LIGHT = ["omegaconf", "pydantic", "numpy", "pyyaml", "py-spy"]  # for train.py and stacks.sh
RAY = [*LIGHT, "ray[default]>=2.55.1", "torch>=2.11,<2.16", "nvidia-ml-py", "psutil", "requests"]


def environment(folder: Path, python: str) -> Path:
    """A new virtual environment; its Python's installation."""
    command = ["uv", "--quiet", "venv", "--relocatable", "--python", python, folder]
    subprocess.run(command, check=True)
    asked = [folder / "bin" / "python", "-c", "import sys; print(sys.base_prefix)"]
    return Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())


def install(folder: Path, packages: list[str]) -> None:
    """Compiled: who runs the jobs may not write here."""
    command = ["uv", "--quiet", "pip", "install", "--compile-bytecode"]
    subprocess.run([*command, "--python", folder / "bin" / "python", *packages], check=True)


def newest_python() -> str:
    """NeMo-RL asks for 3.13: pyenv's (or its 3.12) if there is one, else uv's own."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(pyenv.glob("versions/3.1[23]*/bin/python"))
    return str(found[-1]) if found else "3.13"


def nemo_rl(folder: Path) -> None:
    """NeMo-RL's files; where no clone of it is, the few that a job without Ray needs."""
    clone = checkout.home()
    if clone is None:
        releases.write(folder)  # its types and configs, by which a run is judged
        shutil.copytree(HERE / "light" / "nemo-rl", folder, dirs_exist_ok=True)
        return
    folder.mkdir()
    files = ["git", "-C", str(clone), "archive", "v0.7.0", "ray.sub", "nemo_rl", "examples"]
    archive = subprocess.run(files, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def bare_checkout(folder: Path, ray_sub: str) -> None:
    """What `nemo-algos slurm` reads of a checkout of NeMo-RL."""
    releases.write(folder)
    (folder / "ray.sub").write_text(f"#!/bin/bash\n{ray_sub}\n")


def write(file: Path, venv: str, base: Path, *lines: str) -> None:
    """The image: NeMo-RL, the environment VENV on the nodes, that one's Python; further lines."""
    image = [
        "hsqs=as a squashfs image begins",
        f"{venv}:/opt/nemo_rl_venv",
        "/srv/nemo-rl:/opt/nemo-rl",
    ]
    if not base.is_relative_to("/usr"):
        image.append(f"{base.parent}:{base.parent}")
    image += ["PATH=/opt/nemo_rl_venv/bin:/usr/bin:/bin:/usr/sbin:/sbin"]
    image += ["PYTHONPATH=/opt/nemo-rl", *lines]
    file.write_text("\n".join(image) + "\n")

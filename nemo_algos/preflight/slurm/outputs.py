"""The paths of a config in the container: what it mounts, what it lacks, where a job writes."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import Finding, at, set_at
from nemo_algos.preflight.check.rule import warning
from nemo_algos.preflight.check.rules.data import FILES, PROMPTS

OUTPUTS = {"checkpointing.checkpoint_dir": "checkpoints", "logger.log_dir": "logs"}
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "NRL_MEGATRON_CHECKPOINT_DIR")
EVERYWHERE = ("/", "/tmp", "/dev/shm")  # and so in the container


def absolute(written: DictConfig, folder: Path) -> DictConfig:
    """Relative files that are here, and outputs below the run's folder: a job starts elsewhere."""
    config = _found(OmegaConf.to_container(written))
    for key in OUTPUTS:
        value = at(config, key)
        if isinstance(value, str) and not value.startswith(("/", "$", "~")):
            set_at(config, key, str(folder / value))
    return OmegaConf.create(config)


def _found(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _found(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_found(one) for one in value]
    return os.path.abspath(value) if isinstance(value, str) and _is_here(value) else value


def _is_here(name: str) -> bool:
    """A file or a model's folder; not a prompt of NeMo-RL, which the job finds in its root."""
    path = Path(name)
    own = path.parent.as_posix() == "examples/prompts" and path.name in PROMPTS
    known = path.suffix in FILES or name.startswith(("./", "../"))
    return not own and (known or os.path.isfile(f"{name}/config.json")) and os.path.exists(name)


def unmounted(plain: Mapping[str, Any], mounts: list[str]) -> Iterator[Finding]:
    """Outputs that would be lost with the container, inputs that it does not have."""
    for key in OUTPUTS:
        value = at(plain, key)
        if not isinstance(value, str) or not value.startswith("/"):
            yield Finding(key, f"must be an absolute path, got {value!r}")
        elif (mode := _mode(value, mounts)) != "writable":
            where = "mounted read-only" if mode else "not in a mounted folder"
            hint = "Add --mounts HOST:CONTAINER for a folder above it."
            yield Finding(key, f"{value} is {where}, so its content would be lost. {hint}")
    inputs = {value: key for key, value in reversed(list(texts(plain))) if key not in OUTPUTS}
    for value, key in reversed(inputs.items()):
        lacks = value.startswith("/") and value not in EVERYWHERE and not _mode(value, mounts)
        if lacks and os.path.exists(value):
            hint = f"Add --mounts {value}:{value}, or for a folder above it."
            yield Finding(key, f"{value} exists here, but not in the container. {hint}")


def texts(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a config with their keys."""
    if isinstance(value, str):
        yield above, value
    pairs = value.items() if isinstance(value, Mapping) else ()
    for key, one in enumerate(value) if isinstance(value, list) else pairs:
        yield from texts(one, f"{above}.{key}" if above else str(key))


def _mode(path: str, mounts: list[str]) -> str:
    """Of the deepest mount above a path of the container: writable, readable, or none."""
    mount = _above(path, mounts)
    if not mount:
        return ""
    return "readable" if "ro" in "+".join(mount[2:]).split("+") else "writable"


def at_its_place(path: str, mounts: list[str]) -> bool:
    """Whether a path of the host is the same file in the container."""
    return bool(_mode(path, mounts)) and outside(path, mounts) == path


def outside(path: str, mounts: list[str]) -> str:
    """A mounted path of the container as it is on the host."""
    source, target, *_ = _above(path, mounts) or ("/", "/")
    return os.path.normpath(f"{source}/{os.path.relpath(path, target)}")


def _above(path: str, mounts: list[str]) -> list[str]:
    """The parts of the deepest mount above a path of the container; none where it has none."""
    inside = PurePosixPath(os.path.normpath(path))
    above = [m for m in (mount.split(":") for mount in mounts) if inside.is_relative_to(m[1])]
    return max(above, key=lambda mount: len(PurePosixPath(mount[1]).parts), default=[])


def caches(mounts: list[str]) -> Iterator[Finding]:
    """Variables that name a folder which the container does not have."""
    for name in CACHES:
        path = os.environ.get(name, "")
        if path and not _mode(path, mounts):
            hint = f"Add --mounts {path}:{path}."
            yield warning(name, f"{path} is not mounted, so every job fills it again. {hint}")

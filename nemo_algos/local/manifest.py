"""manifest.json: what a run was made of. A folder holds one config's run."""

import json
import platform
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nemo_algos.local.lines import Shape, read_object, refuse_links_out, replace
from nemo_algos.local.schema import LocalConfig

LIBRARIES = ("torch", "transformers", "numpy", "nemo-algos")
# keys that name code, and what they may name without asking
NAMES_CODE = {
    r"method\b": r"[^:]*",
    r"data\.task\b": r"[^:]*",
    r"data\.(verifier|rewards\..+\.function)\b": r"nemo_algos\.rewards\.math:verify_math",
    r"policy\.(optimizer|scheduler\.\d+)\.name\b": r"torch\.optim\.(lr_scheduler\.)?\w+",
}


class Manifest(Shape):
    config: dict[str, Any]


def refuse_another(folder: Path, config: LocalConfig) -> None:
    """Raises ValueError where the folder holds a run of another config, or links out of it."""
    refuse_links_out(folder)
    path = folder / "manifest.json"
    different = differences(read(path), config.model_dump(mode="json")) if path.exists() else []
    if different:
        remedy = "resume with its own, or use another folder"
        listed = "\n  ".join(different)
        raise ValueError(f"{folder} holds a run of another config; {remedy}:\n  {listed}")


def write(folder: Path, config: LocalConfig) -> None:
    """Write manifest.json where there is none: config, versions, git state."""
    path = folder / "manifest.json"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "config": config.model_dump(mode="json"),
        "seed": config.grpo.seed,
        "versions": {"python": platform.python_version(), **{x: version(x) for x in LIBRARIES}},
        "git": _git_state(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    replace(path, json.dumps(manifest, indent=2))


def read(path: Path) -> dict[str, Any]:
    """The config of a run's manifest. Raises ValueError where it is none, or links lead out."""
    refuse_links_out(path.parent)
    return read_object(path, Manifest)["config"]


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`key: old -> new` for every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        leaves = (differences(old.get(k), new.get(k), f"{path}.{k}".strip(".")) for k in keys)
        return [line for lines in leaves for line in lines]
    return [] if old == new else [f"{path}: {old} -> {new}"]


def foreign_code(config: Any, path: str = "") -> dict[str, str]:
    """Keys of a run's config whose values, or references, name code neither ours nor torch's."""
    if isinstance(config, (dict, list)):
        items = config.items() if isinstance(config, dict) else enumerate(config)
        inner = (foreign_code(value, f"{path}.{key}".strip(".")) for key, value in items)
        return {key: value for found in inner for key, value in found.items()}
    harmless = next((known for key, known in NAMES_CODE.items() if re.match(key, path)), ".*")
    text = str(config)
    known = "${" not in text and re.fullmatch(harmless, text, re.DOTALL)
    return {} if known else {path: text}


def _git_state() -> str:
    """Commit and whether the tree is dirty; empty outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""

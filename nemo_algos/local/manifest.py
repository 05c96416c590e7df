"""manifest.json: what a run was made of. A folder holds one config's run."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nemo_algos.local.schema import LocalConfig

LIBRARIES = ("torch", "transformers", "numpy", "nemo-algos")


def write(folder: Path, config: LocalConfig) -> None:
    """manifest.json: config, versions, git state. Raises ValueError where the folder holds a run of
    another config."""
    path, plain = folder / "manifest.json", config.model_dump(mode="json")
    if path.exists():
        different = differences(json.loads(path.read_text())["config"], plain)
        if different:
            raise ValueError(
                f"{folder} holds a run of another config; resume with its own, or use another "
                f"folder:\n  " + "\n  ".join(different)
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "config": plain,
        "seed": config.grpo.seed,
        "versions": {"python": platform.python_version(), **{x: version(x) for x in LIBRARIES}},
        "git": _git_state(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(manifest, indent=2))
    partial.replace(path)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`key: old -> new` for every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [
            d for k in keys for d in differences(old.get(k), new.get(k), f"{path}.{k}".strip("."))
        ]
    return [] if old == new else [f"{path}: {old} -> {new}"]


def _git_state() -> str:
    """Commit and whether the tree is dirty; empty outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""

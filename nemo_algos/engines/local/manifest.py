"""manifest.json: what a run was made of. A folder holds one config's run."""

import json
import platform
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import Field

from nemo_algos.config import resolved, validate
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.environment import as_written
from nemo_algos.jsonl import Shape, read_object, refuse_links_out, replace

LIBRARIES = ("torch", "transformers", "numpy", "nemo-algos")
# keys that name code or whom a run tells, and texts for the model: what they hold without asking
HARMLESS = {
    r"method\b": r"[^:]*",
    r"data\.task\b": r"[^:]*",
    r"data\.(verifier|rewards\..+\.function)\b": r"math|countdown|choice",
    r"policy\.(optimizer|scheduler\.\d+)\.name\b": r"torch\.optim\.(lr_scheduler\.)?\w+",
    r"logger\.(mlflow\.tracking_uri|wandb\.entity)\b": r"None",
    r"data\.(prompt|system_prompt|answer_prefix)\b|policy\.tokenizer\.chat_template\b": r".*",
}
NO_ADDRESS = r"(?!.*://).*"  # of every other key

# keys with which a run may go on: they change how far, how fast or how well seen it trains, or the
# size of its updates, but neither what is asked and rewarded nor which numbers are stored
MAY_CHANGE = (
    r"logger\.|checkpointing\.|mismatch\.|data\.verifier_workers:"
    r"|grpo\.(max_num_steps|val_\w+|max_val_samples|stop_at_\w+):"
    r"|policy\.(device|threads|generation_batch_size|train_micro_batch_size|max_grad_norm):"
    r"|policy\.(dynamic_batching\.|dtensor_cfg\.activation_|scheduler:)"
    r"|policy\.optimizer\.kwargs\.(lr|betas|eps|weight_decay):"
)
REASONS = {
    r"method\b": "the steps so far are another method's",
    r"policy\.optimizer\b": "the checkpoint holds this optimizer's state",
    r"policy\.(model_name|shape|tokenizer)\b": "the checkpoint holds this model's weights",
    r"policy\.dtensor_cfg\.lora_cfg\b": "the checkpoint holds these adapters' weights",
    r"data\.|grpo\.(seed|num_prompts_per_step):": "other problems would come, or other rewards",
}
OTHER_STEPS = "a step would be another one: start a new run"


class Manifest(Shape):
    config: dict[str, Any]
    started: str = ""
    changes: list[Any] = Field(default=[])


def write(folder: Path, config: LocalConfig) -> None:
    """Write manifest.json: config, versions, git state."""
    manifest = {
        "config": stored(config),
        "seed": config.grpo.seed,
        "versions": {"python": platform.python_version(), **{x: version(x) for x in LIBRARIES}},
        "git": _git_state(),
        "started": _now(),
    }
    replace(folder / "manifest.json", json.dumps(manifest, indent=2))


def stored(config: LocalConfig) -> dict[str, Any]:
    """The config as JSON, what the environment holds as it is written."""
    return as_written(config.model_dump(mode="json"))


def changed(folder: Path, config: LocalConfig, step: int) -> list[str]:
    """What this config changes in the folder's run, from this step on: a line in its manifest.

    Raises ValueError, with the reason for each key, where the steps so far would be another run's.
    """
    path = folder / "manifest.json"
    manifest, now = read_object(path, Manifest), stored(config)
    before = stored(validate(LocalConfig, resolved(OmegaConf.create(manifest["config"]))))
    lines = [" ".join(line.split()) for line in differences(before, now)]
    refused = [f"{line} ({reason})" for line in lines if (reason := _reason(line))]
    if refused:
        remedy = "resume with its own, or use another folder"
        listed = "\n  ".join(refused)
        raise ValueError(f"{folder} holds a run of another config; {remedy}:\n  {listed}")
    if lines:
        changes = [*manifest.get("changes", []), {"step": step, "at": _now(), "changed": lines}]
        manifest |= {"config": now, "changes": changes}
        replace(path, json.dumps(manifest, indent=2))
    return lines


def id_of(folder: Path) -> str:
    """A name that no other run has, nor one that was here before."""
    started = read_object(folder / "manifest.json", Manifest).get("started", "")
    return re.sub(r"[^\w-]", "", f"{folder.name}-{started}")


def _reason(line: str) -> str:
    """Why a difference may not be; empty where it may."""
    if re.match(MAY_CHANGE, line):
        return ""
    return next((reason for key, reason in REASONS.items() if re.match(key, line)), OTHER_STEPS)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


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


def foreign(config: Any, path: str = "") -> dict[str, str]:
    """Keys of a run's config that name code neither ours nor torch's, a server, or a reference."""
    if isinstance(config, (dict, list)):
        items = config.items() if isinstance(config, dict) else enumerate(config)
        inner = (foreign(value, f"{path}.{key}".strip(".")) for key, value in items)
        return {key: value for found in inner for key, value in found.items()}
    harmless = next((h for key, h in HARMLESS.items() if re.match(key, path)), NO_ADDRESS)
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

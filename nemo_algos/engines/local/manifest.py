"""manifest.json: what a run was made of. A folder holds one config's run."""

import json
import platform
import re
import subprocess
import time
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from pydantic import Field

from nemo_algos.algorithms.extensions.old_policy import reconcile
from nemo_algos.config import resolve
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.findings import validate
from nemo_algos.jsonl import JsonObject, read_object, refuse_links_out, replace
from nemo_algos.secrets import as_written

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
MAY_CHANGE = {
    *("logger.*", "checkpointing.*", "mismatch.*", "data.verifier_workers"),
    *("grpo.max_num_steps", "grpo.val_*", "grpo.max_val_samples", "grpo.stop_at_*"),
    *("policy.device", "policy.threads", "policy.generation_batch_size", "policy.max_grad_norm"),
    *("policy.train_micro_batch_size", "policy.dynamic_batching.*", "policy.scheduler"),
    "policy.dtensor_cfg.activation_*",
    *(f"policy.optimizer.kwargs.{key}" for key in ("lr", "betas", "eps", "weight_decay")),
}
_MEGATRON = "policy.megatron_cfg"
REASONS = {
    "the steps so far used another method": ["method*", "loss_fn*"],
    "the checkpoint contains the state of this optimizer": [
        "policy.optimizer*",
        "policy.scheduler*",
        f"{_MEGATRON}.optimizer*",
        f"{_MEGATRON}.scheduler*",
    ],
    "the checkpoint contains the weights of this model": [
        "policy.model_name",
        "policy.shape*",
        "policy.tokenizer*",
    ],
    "the checkpoint contains the weights of these adapters": [
        "policy.dtensor_cfg.lora_cfg*",
        f"{_MEGATRON}.peft*",
    ],
    "the problems or the rewards would differ": [
        "data.*",
        "grpo.seed",
        "grpo.num_prompts_per_step",
    ],
}
OTHER_STEPS = "this changes the training step itself"


class Difference(NamedTuple):
    """A key of two configs that has another value in the new one."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return " ".join(f"{self.key}: {self.old} -> {self.new}".split())


class Manifest(JsonObject):
    config: dict[str, Any]
    started: str = ""
    changes: list[Any] = Field(default=[])


def write(folder: Path, config: LocalConfig, method: str) -> None:
    """Write manifest.json: config, versions, git state.

    method: its own name, such as rare of my_package.my_module:MINE, with which its metrics begin.
    """
    manifest = {
        "config": to_json(config),
        "method": method,
        "seed": config.grpo.seed,
        "versions": {"python": platform.python_version(), **{x: version(x) for x in LIBRARIES}},
        "git": _git_state(),
        "started": _now(),
    }
    replace(folder / "manifest.json", json.dumps(manifest, indent=2))


def to_json(config: LocalConfig) -> dict[str, Any]:
    """The config as JSON, what the environment holds as it is written."""
    return as_written(config.model_dump(mode="json"))


def record_changes(folder: Path, config: LocalConfig, step: int) -> list[Difference]:
    """Write into the folder's manifest what this config changes in its run from this step on.

    Raises ValueError as `changes`.
    """
    path = folder / "manifest.json"
    found = changes(folder, config)
    if found:
        manifest = read_object(path, Manifest)
        entry = {"step": step, "at": _now(), "changed": [str(change) for change in found]}
        changed = [*manifest.get("changes", []), entry]
        manifest |= {"config": to_json(config), "changes": changed}
        replace(path, json.dumps(manifest, indent=2))
    return found


def changes(folder: Path, config: LocalConfig) -> list[Difference]:
    """What this config changes in the folder's run.

    Raises ValueError, with the reason for each key, where the steps so far would be another run's.
    """
    written = resolve(OmegaConf.create(read_object(folder / "manifest.json", Manifest)["config"]))
    before = to_json(validate(LocalConfig, reconcile(written)))
    found = differences(before, to_json(config))
    refused = []
    for change in found:
        if not any(fnmatchcase(change.key, pattern) for pattern in MAY_CHANGE):
            refused.append(f"{change} ({reason(change.key)})")
    if refused:
        listed = "\n  ".join(refused)
        raise ValueError(
            f"{folder} contains a run with another config. Resume with the same values, or use "
            f"another folder:\n  {listed}"
        )
    return found


def id_of(folder: Path) -> str:
    """A name that no other run has, nor one that was here before."""
    started = read_object(folder / "manifest.json", Manifest).get("started", "")
    return re.sub(r"[^\w-]", "", f"{folder.name}-{started}")


def reason(key: str) -> str:
    """Why a resume keeps a key, of this engine or of NeMo-RL."""
    for why, patterns in REASONS.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns):
            return why
    return OTHER_STEPS


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def read(path: Path) -> dict[str, Any]:
    """The config of a run's manifest. Raises ValueError where it is none, or links lead out."""
    refuse_links_out(path.parent)
    return read_object(path, Manifest)["config"]


def differences(old: Any, new: Any, path: str = "") -> list[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        leaves = (differences(old.get(k), new.get(k), f"{path}.{k}".strip(".")) for k in keys)
        return [difference for found in leaves for difference in found]
    if old == new:
        return []
    return [Difference(path, old, new)]


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

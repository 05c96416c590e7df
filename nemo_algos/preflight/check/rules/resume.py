"""What a run would go on from: the last checkpoint in its folder, and the config that saved it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_algos.config import read
from nemo_algos.engines.local.manifest import differences, reason
from nemo_algos.findings import ConfigError, Finding, at, sections_of
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON
from nemo_algos.preflight.check.rule import Preflight, error, errors, note, warning
from nemo_algos.preflight.check.rules.run import FOLDER, NAME

LARGEST = 1 << 20  # bytes of a saved config
V2 = f"{DTENSOR}._v2"
KL = "loss_fn.reference_policy_kl_penalty"
CURE = f"Resume with the same value, or use another `{FOLDER}`."
# of adapters: those that are loaded would fit no layer, or would count for more or less
ADAPTERS = ("dim", "alpha", "target_modules", "exclude_modules", "match_all_linear")
# Megatron's schedule compares these with the checkpoint's and stops
COMPARED = (f"{MEGATRON}.optimizer.lr", f"{MEGATRON}.optimizer.min_lr", f"{MEGATRON}.scheduler")
# changed, they have no effect, or train the weights on something else, without a word
KEPT = (
    "policy.tokenizer",
    "policy.hf_config_overrides",
    "policy.optimizer",
    "policy.scheduler",
    "loss_fn",
    "grpo.num_prompts_per_step",
    "data.shuffle",
    "data.train",
)


def resume(run: Preflight) -> Iterator[Finding]:
    """A run goes on from the last checkpoint in its folder only with what has made that."""
    folder = Path(str(run[FOLDER]))
    names = [path.name[5:] for path in folder.glob("step_*")] if os.path.isdir(folder) else []
    last = max((int(name) for name in names if name.isdecimal()), default=0)
    if not last:
        return
    step = folder / f"step_{last}"
    yield note(FOLDER, f"the run will continue from {step}, the last of {len(names)} there")
    made = _saved_config(step)
    trainer = _trainer(run.plain)
    before = _trainer(made) if made else ""
    weights = f"policy/weights{'/model' if trainer == V2 else ''}"
    absent = [name for name in ("training_info.json", weights) if not os.path.exists(step / name)]
    if before == trainer:
        yield from _changed(run, made, step)
    yield from errors(
        (
            made and before != trainer,
            trainer,
            f"{step} was saved by another backend, `{before}`. {CURE}",
        ),
        (
            absent and before in ("", trainer),
            FOLDER,
            f"{step} has no {' and no '.join(absent)}, with which NeMo-RL resumes. Copy the whole "
            "checkpoint there, or remove it, or set another folder.",
        ),
    )
    if last >= run["grpo.max_num_steps"]:
        yield warning(
            "grpo.max_num_steps",
            f"{step} has as many steps, so the run would end at once. Raise it, or set another "
            f"`{FOLDER}`.",
        )
    penalized = trainer == V2 and (run[KL] or 0) > 0
    if penalized and run.nemo_rl.facts["DTensor v2 has what it resumes as its reference"]:
        yield warning(
            KL,
            f"DTensor v2 takes the weights of {step} as its reference, so the KL penalty starts at "
            "0 again (NVIDIA-NeMo/RL#2955). Use a NeMo-RL with pull request 3722, or set "
            f"`{V2}: false` from the first step on.",
        )


def _saved_config(step: Path) -> Any:
    """The config that NeMo-RL saved with a checkpoint; empty where it cannot be read."""
    file = step / "config.yaml"
    if not os.path.isfile(file) or os.path.getsize(file) > LARGEST:
        return {}
    try:
        return OmegaConf.to_container(read(file))
    except ConfigError:
        return {}


def _trainer(plain: Mapping[str, Any]) -> str:
    """The key that chooses the backend."""
    return next(
        (key for key in (f"{MEGATRON}.enabled", V2) if at(plain, key)), f"{DTENSOR}.enabled"
    )


def _changed(run: Preflight, made: dict[str, Any], step: Path) -> Iterator[Finding]:
    """What this config changes of the one that saved a checkpoint."""
    enabled = f"{run.adapters}.enabled"
    strict = (
        run.megatron
        and not run[f"{MEGATRON}.scheduler.override_opt_param_scheduler"]
        and at(made, "checkpointing.save_optimizer") is not False
    )
    refused = [
        *(NAME, enabled, "data.use_multiple_dataloader"),
        *(f"{run.adapters}.{name}" for name in ADAPTERS if run[enabled]),
        *(COMPARED if strict else ()),
    ]
    for key in (*refused, *KEPT):
        for change in differences(_value(made, key), _value(run.plain, key), key):
            moved = Path(str(change.old)).name == Path(str(change.new)).name
            unknown = None in change and change.key != enabled  # to one of two releases
            if unknown or not (change.old or change.new) or (moved and change.key.endswith("name")):
                continue
            say = error if key in refused else warning
            yield say(
                change.key,
                f"it was {str(change.old)[:100]!r} when {step} was saved: {reason(change.key)}. "
                f"{CURE}",
            )


def _value(plain: Mapping[str, Any], key: str) -> Any:
    """A key's value; of data sets their files."""
    found = at(plain, key)
    if key == "data.train":
        return [one.get("data_path") for one in sections_of(found)]
    return found

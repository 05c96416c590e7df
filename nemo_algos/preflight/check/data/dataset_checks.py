"""The stage of the data: every row, its prompt, its length, and how the rows fit together."""

from collections.abc import Mapping
from typing import Any

from nemo_algos.engines.nemo.derived_config import is_vlm, uses_gym
from nemo_algos.preflight.check.data import leakage, lengths, prompts, rows, tokenizer_checks
from nemo_algos.preflight.check.data.datasets import Loaded
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.verdict import Stage, list_rows, share


def judge(
    stage: Stage, config: Mapping[str, Any], loaded: Loaded, tokenizer: Any, seen: dict[str, Any]
) -> list[Row]:
    """The rows that can be used."""
    gym = uses_gym(config.get("env"))
    splits = {"train": _split(stage, config, loaded, "train")}
    if loaded.validation is not None:
        splits["validation"] = _split(stage, config, loaded, "validation")
    if gym:
        stage.unchecked("NeMo Gym's servers make the prompts, so they were not checked.", "env")
    for name, found in splits.items():
        good = [row for row in found if not row.fault]
        if good and not gym:
            _prompts(stage, config, loaded, tokenizer, name, good, seen)
    if not loaded.absent and not gym:
        leakage.judge(stage, splits["train"], splits.get("validation", []))
        _enough(stage, config, len(splits["train"]))
    return [row for found in splits.values() for row in found if not row.fault]


def _prompts(
    stage: Stage,
    config: Mapping[str, Any],
    loaded: Loaded,
    tokenizer: Any,
    name: str,
    good: list[Row],
    seen: dict[str, Any],
) -> None:
    """The prompts of training or validation."""
    read = config["policy"]["tokenizer"]["name"] != str(tokenizer_checks.stand_in(stage.folder))
    lengths.judge(stage, good, config, name, read and not loaded.absent)
    first = next((prompts.render(row, tokenizer) for row in good if row.tokens), "")
    tokens = lengths.summary([row.length for row in good])
    seen[name] = {"rows": len(good), "prompt_tokens": tokens, "first_prompt": first}
    seen["longest"] = max(seen["longest"], tokens["max"])
    default = config["data"].get("default") or {}
    for task in dict.fromkeys(row.task for row in good):
        key, section = loaded.sections[name][task]
        named = [f for f in ("prompt_file", "system_prompt_file") if section.get(f)]
        inherited = named and all(section[f] == default.get(f) for f in named)
        mine = [row for row in good if row.task == task]
        prompts.judge(stage, mine, tokenizer, "data.default" if inherited else key, section)


def _split(stage: Stage, config: Mapping[str, Any], loaded: Loaded, name: str) -> list[Row]:
    """The rows of training or validation; those that cannot be used are named."""
    parts = loaded.train if name == "train" else [loaded.validation]
    whole = sum(len(part) for part in parts)
    most = rows.PICTURED if is_vlm(config["data"]) else rows.MOST
    found = list(rows.read(parts, loaded.numbers[name], most))
    broken = [row for row in found if row.fault]
    if broken:
        stage.failed(
            f"{share(len(broken), len(found))} rows of data.{name} cannot be used: "
            f"{list_rows([row.number for row in broken])}. In row {broken[0].number:,} "
            f"{broken[0].fault}. Correct or remove them.",
            f"data.{name}",
            rows={row.number: row.fault for row in broken[:100]},
        )
    elif not loaded.absent:
        more = ""
        if loaded.split_off:
            where = "without" if name == "train" else "with"
            moved = "rows of training's files that NeMo-RL validates on (split_validation_size)"
            more = f" That is {where} {loaded.split_off:,} {moved}."
        stage.passed(f"All {len(found):,} rows of data.{name} can be used.{more}", f"data.{name}")
    if whole > len(found):
        stage.unchecked(
            f"The first {len(found):,} of {whole:,} rows of data.{name} were read.", f"data.{name}"
        )
    return found


def _enough(stage: Stage, config: Mapping[str, Any], count: int) -> None:
    grpo = config["grpo"]
    more = grpo.get("batch_multiplier") or 1 if grpo.get("use_dynamic_sampling") else 1
    prompts = int(grpo["num_prompts_per_step"] * more)
    if count < prompts:
        stage.failed(
            f"A step takes {prompts} prompts, and there are {count} rows: NeMo-RL drops the "
            "incomplete batch, so no step is made. Lower `grpo.num_prompts_per_step`, or add rows.",
            "grpo.num_prompts_per_step",
        )

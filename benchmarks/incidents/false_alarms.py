"""False alarms: what `check` says of configs that run: NeMo-RL's own for GRPO, and our recipes."""

from __future__ import annotations

import os
from collections import Counter
from unittest import mock

from preflights import release, written

from nemo_algos.config import SHIPPED
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.preflight.check import judge as check
from nemo_algos.preflight.check.rules import data

# what NeMo-RL itself stops at, or leaves to the user, in these of its files
KNOWN = {
    "policy.model_name": ("deepseek", "dsv3"),
    "policy.dtensor_cfg.cpu_offload": ("sliding_puzzle",),
    "grpo.batch_multiplier": ("prorlv2_1_moe",),
    "policy.megatron_cfg.defer_fp32_logits": ("mmpr-4n8g-megatron",),
    "env.math.math_verify_impl": ("dapo-deepseek-v3",),
}
SET = {"HF_HOME": "/hub", "NRL_IGNORE_TP_ACCURACY_CHECK": "1"}  # as their launch scripts do


def count() -> list[str]:
    """Lines: configs, errors that are false, and warnings by key, which a reader judges."""
    theirs = {name: f"examples/configs/{name}" for name in release().grpo}
    ours = {path.name: str(path) for path in sorted((SHIPPED / "recipes").rglob("*g-*.yaml"))}
    rules = [rule for rule in check.RULES if rule.__module__ != data.__name__]
    alone = mock.patch.multiple(check, CONFLICTS=(), RULES=rules)  # NeMo-RL's methods, not ours
    with mock.patch.dict(os.environ, SET), alone:
        lines = _of("NeMo-RL's own GRPO configs", theirs)
    return lines + _of("our recipes", ours)


def _of(whose: str, configs: dict[str, str]) -> list[str]:
    false = []
    warned = Counter[str]()
    for name, path in configs.items():
        for found in _findings(path):
            known = any(part in name for part in KNOWN.get(found.path, ()))
            if found.severity == "error" and not known:
                false.append(f"  {name}: {found}")
            elif found.severity == "warning":
                warned[found.path] += 1
    warnings = ", ".join(f"{key} {times}" for key, times in warned.most_common())
    head = f"{whose}: {len(configs)} configs, {len(false)} false errors, {warned.total()} warnings"
    return [head, *false, f"  warnings: {warnings or 'none'}"]


def _findings(path: str) -> list[Finding]:
    try:
        return check.judge(written(path, []), release())[1]
    except ConfigError as error:
        return error.findings

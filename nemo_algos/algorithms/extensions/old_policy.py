"""Whom the ratio is to: the trainer's own log-probs, or the sampler's; and what one update leaves.

`old_policy: sampler` is verl's `rollout_correction.bypass_mode: true`. `reconcile` makes
the two agree, once, before a run is built; all other code reads the correction. Loads no torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from nemo_algos.algorithms.algorithm import Algorithm, needs_of_rest
from nemo_algos.algorithms.extensions.compatibility import essence, has_no_ratio, two_policies
from nemo_algos.algorithms.extensions.correction import PRESETS, CorrectionConfig
from nemo_algos.algorithms.kernel import INFINITE, group_advantages
from nemo_algos.findings import Finding, did_you_mean

OldPolicy = Literal["trainer", "sampler"]
KEY = "old_policy"
BLOCK = "rollout_correction"


def reconcile(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The config with old_policy and bypass_mode saying the same, where one of them is written."""
    block = plain.get(BLOCK)
    written = plain.get(KEY)
    bypass = _bypass(block)
    if written is None and bypass is not None:
        return {**plain, KEY: "sampler" if bypass else "trainer"}
    if written in get_args(OldPolicy) and (block is None or isinstance(block, Mapping)):
        said = {} if bypass is not None else {"bypass_mode": written == "sampler"}
        return {**plain, BLOCK: {**said, **(block or {})}}
    return dict(plain)


def conflicts(plain: Mapping[str, Any]) -> Iterator[Finding]:
    """An old_policy that there is not, or that bypass_mode contradicts."""
    written = plain.get(KEY)
    bypass = _bypass(plain.get(BLOCK))
    known = get_args(OldPolicy)
    if written is not None and written not in known:
        hint = did_you_mean(str(written), known)
        yield Finding(KEY, f"it cannot be {written!r}{hint}. Set it to sampler or trainer.")
    elif written is not None and bypass is not None and bypass != (written == "sampler"):
        yield Finding(
            KEY,
            f"it is {written}, but `{BLOCK}.bypass_mode` is {str(bypass).lower()}, and both keys "
            "mean the same. Remove one of them.",
        )


def _bypass(block: Any) -> bool | None:
    """What the block or its preset says; None where it says nothing, or nothing that is valid."""
    own = block if isinstance(block, Mapping) else {}
    preset = PRESETS.get(str(own.get("preset")), {})
    found = {**preset, **own}.get("bypass_mode")
    return found if isinstance(found, bool) else None


def inert_on_policy(a: Algorithm) -> list[str]:
    """The methods whose bounds or loss do nothing while every ratio to the old policy is 1."""
    base = a.base.method
    bounds = a.bounds.method
    if has_no_ratio(a) or base.own_denominator:
        return []
    compares = "gen_logprobs" in needs_of_rest(base)  # with the sampler, whatever the ratio is
    lost = [base.name] if "loss" in essence(base) and not compares else []
    return list(dict.fromkeys(lost + [bounds.name] * ("bounds" in essence(bounds))))


def warn_on_policy(a: Algorithm, updates: float, key: str) -> None:
    """Warn where one update per batch leaves nothing of the method's ratio; key: what sets them."""
    lost = inert_on_policy(a)
    if lost and updates == 1:
        warnings.warn(
            f"{key}: with one update per batch every ratio is 1, so the ratio terms of "
            f"{' and '.join(lost)} have no effect. Make 4 updates, for example.",
            stacklevel=3,
        )


def on_policy_objective(a: Algorithm) -> str:
    """What is trained while every ratio is 1, in words; empty where nothing is lost by that."""
    base = a.base.method
    clips = base.clips is not None and a.constant_bounds != INFINITE and not has_no_ratio(a)
    if base.own_denominator or not (clips or inert_on_policy(a)):
        return ""
    if "gen_logprobs" in needs_of_rest(base):
        return f"{base.name} without clipping"
    method = a.advantages.method
    if method.advantages is group_advantages:
        return "REINFORCE with a group baseline"
    return f"REINFORCE with the advantages of {method.name}"


def takes_sampler(a: Algorithm) -> bool:
    """Whether the method has a meaning with the ratio to the sampler."""
    asked = replace(a, correction=CorrectionConfig(bypass_mode=True))
    return not [*two_policies(asked)]

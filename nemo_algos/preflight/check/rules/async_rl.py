"""Keys of NeMo-RL's single controller against one another, as its own validators judge them."""

import math
from collections.abc import Iterator
from typing import Any

from nemo_algos.config import Finding, did_you_mean
from nemo_algos.engines.nemo.derived_config import uses_gym
from nemo_algos.preflight.check.layout import SINGLE_CONTROLLER as SECTION
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import error, note, warning

FAILURE = "rollout_failure"
ROUTER = "generation_router"
WATCHDOG = "stall_watchdog"
FLEET = "generation_fleet_health"
GYM = f"{FAILURE}.nemo_gym"
STALL = f"{WATCHDOG}.stall_timeout_s"
SLOW = "a slow rollout would be reported as a stall"
# two keys, the first of which must be below the second, or at most as large; and what happens else
BELOW: tuple[tuple[str, str, str], ...] = (
    (f"{WATCHDOG}.interval_s", STALL, "the watchdog cannot see a stall"),
    (f"{GYM}.rollout_timeout_s", STALL, SLOW),
    (f"{FAILURE}.native.generation_timeout_s", STALL, SLOW),
    (f"{FAILURE}.native.env_timeout_s", STALL, SLOW),
    (f"{FLEET}.probe_timeout_s", f"{FLEET}.probe_interval_s", "probes would overlap"),
    (f"{ROUTER}.port_range_low", f"{ROUTER}.port_range_high", "no port would be free"),
)
AT_MOST: tuple[tuple[str, str, str], ...] = (
    (
        f"{FAILURE}.backoff_base_s",
        f"{FAILURE}.max_backoff_s",
        "the longest delay is below the first",
    ),
    (
        f"{ROUTER}.connect_timeout_s",
        f"{ROUTER}.backend_timeout_s",
        "the connection's deadline would never pass",
    ),
)
ROUTED = (
    f"{ROUTER}.backend_timeout_s",
    f"{GYM}.rollout_timeout_s",
    "one request may outlast its rollout",
)
RETRIED = (429, 500, 502, 503, 504, 520)  # HTTP statuses that NeMo Gym asks again after
BUDGETS = ("max_skipped_prompts", "max_consecutive_dropped_prompts")


def _set(run: Preflight, key: str) -> Any:
    """What a key below the section is, or is by default."""
    return run.or_default(f"{SECTION}.{key}")


def _failure(run: Preflight, key: str) -> Any:
    return _set(run, f"{FAILURE}.{key}")


def sampler_keys(run: Preflight) -> Iterator[Finding]:
    """The chosen sampler reads every key that is written for it."""
    read = [*run.nemo_rl.samplers.get(run.sampler, ())]
    path = f"{SECTION}.sampler"
    if not run.controlled or not read:
        return
    section = (run.written.get(SECTION) or {}).get("sampler") or {}
    if run.sampler == "custom":
        target = str(run[f"{path}.target"] or "")
        if ":" not in target:
            reason = f"names no class, got {target!r}" if target else "it is missing"
            yield error(f"{path}.target", f"{reason}. Write the path of your class, module:Class.")
        if inherited := [key for key in run[path] if key not in (*read, *section)]:
            given = f"is also given the base config's {', '.join(inherited)}"
            hint = "its constructor must take it, or async_rl must have _override_: true"
            yield note(path, f"{target or 'your class'} {given}: {hint}")
        return
    for key in [k for k, value in section.items() if k not in read and value is not None]:
        near = did_you_mean(key, [other for other in read if other != "name"])
        reason = f"the sampler {run.sampler} does not read it{near}"
        yield error(f"{path}.{key}", f"{reason}. Remove it, or set it to null.")


def deadlines(run: Preflight) -> Iterator[Finding]:
    """Times and ports are in their order."""
    if not run.controlled:
        return
    routed = [ROUTED] if _set(run, f"{ROUTER}.enabled") else []
    tables = {"above": BELOW, "at least": (*AT_MOST, *routed)}
    for word, rows in tables.items():
        for lower, upper, reason in rows:
            low = _set(run, lower)
            high = _set(run, upper)
            fits = None in (low, high) or (low < high if word == "above" else low <= high)
            if not fits:
                what = f"{high:g} must be {word} `{SECTION}.{lower}: {low:g}`"
                yield error(f"{SECTION}.{upper}", f"{what}, or {reason}. Change one of them.")


def router_status(run: Preflight) -> Iterator[Finding]:
    """NeMo Gym gives up where the router has no engine."""
    path = f"{SECTION}.{ROUTER}.no_healthy_backend_status"
    if run.controlled and run.or_default(path) in RETRIED:
        reason = f"NeMo Gym retries forever after {', '.join(map(str, RETRIED))}"
        yield error(path, f"{reason}. Set another status, such as 409.")


def dropped_prompts(run: Preflight) -> Iterator[Finding]:
    """A prompt that is given up leaves a step that can close: in_order alone counts it."""
    if not run.controlled or run.sampler == "custom":
        return
    prompts = run["grpo.num_prompts_per_step"]
    asked = [key for key in BUDGETS if _failure(run, key)]
    replaces = _failure(run, "on_dropped_prompt") == "replace"
    share = _failure(run, "min_step_batch_fraction")
    for key in asked if run.sampler != "in_order" else ():
        reason = f"{run.sampler} would wait forever for a prompt that was dropped"
        cure = "Set it to 0, or set `sampler.name: in_order`."
        yield error(f"{SECTION}.{FAILURE}.{key}", f"{reason}. {cure}")
    whole = share is not None and math.ceil(prompts * share) >= prompts
    if asked and run.sampler == "in_order" and whole and not replaces:
        reason = f"every step must have all its prompts, so {asked[0]} never applies"
        hint = "Set a smaller share, or set `on_dropped_prompt: replace`."
        yield warning(f"{SECTION}.{FAILURE}.min_step_batch_fraction", f"{reason}. {hint}")


def replacements(run: Preflight) -> Iterator[Finding]:
    """Prompts that replace others can be drawn, and are asked for."""
    if not run.controlled or _failure(run, "on_dropped_prompt") != "replace":
        return
    prompts = run["grpo.num_prompts_per_step"]
    for key in ("max_replacement_attempts", "replacement_reserve_prompts"):
        if not _failure(run, key):
            reason = "at 0, `on_dropped_prompt: replace` cannot replace any prompt"
            yield error(f"{SECTION}.{FAILURE}.{key}", f"{reason}. Set it to at least 1.")
    if (_failure(run, "replacement_reserve_prompts") or 0) > prompts:
        reason = f"the reserve fills by whole steps of {prompts} prompts before sampling starts"
        path = f"{SECTION}.{FAILURE}.replacement_reserve_prompts"
        yield warning(path, f"{reason}. Set it to at most {prompts}.")
    if run.sampler not in ("in_order", "custom"):
        reason = f"{run.sampler} fills every step, so no prompt would be replaced"
        yield warning(f"{SECTION}.{FAILURE}.on_dropped_prompt", f"{reason}. Set it to shrink.")


def other_rollouts(run: Preflight) -> Iterator[Finding]:
    """Settings are of the rollouts that run: NeMo-RL's own, or NeMo Gym's."""
    if not run.controlled:
        return
    gym = uses_gym(run["env"])
    unread = f"{SECTION}.{FAILURE}.{'native' if gym else 'nemo_gym'}"
    whose = "NeMo-RL" if gym else "NeMo Gym"
    for path, schema in run.nemo_rl.schema.items():
        if path.startswith(f"{unread}.") and run[path] not in (None, schema.get("default")):
            reason = f"only {whose} rollouts read it, and this config does not run them"
            yield error(path, f"{reason}. Remove it.")

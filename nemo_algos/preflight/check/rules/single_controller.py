"""NeMo-RL's single controller: what it asserts, what it leaves undone, and what a chunk lacks."""

import json
import math
from collections.abc import Iterator
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.config import Finding, did_you_mean
from nemo_algos.engines.nemo.derived_config import is_vlm, uses_gym
from nemo_algos.preflight.check.both_engines import GLOBAL, PROMPTS
from nemo_algos.preflight.check.layout import MEGATRON, SINGLE_CONTROLLER, VLLM
from nemo_algos.preflight.check.layout import SINGLE_CONTROLLER as SECTION
from nemo_algos.preflight.check.release import READS
from nemo_algos.preflight.check.rule import CORRECTION, Preflight, error, note, warning
from nemo_algos.preflight.check.rules.batch import CHUNK
from nemo_algos.preflight.check.rules.generation import GENERATION

OTHER = "Set `nemo_rl.config` to a base config without async_rl, such as grpo_math_1B.yaml."

BUFFER = f"{SINGLE_CONTROLLER}.max_buffered_rollouts"
UNGATED = ("windowed", "custom")  # samplers that dispatch until the buffer is full
# keys of other trainers that it may not read (`release.CONTROLLED`): how each asks for nothing
UNREAD = {
    "data.use_multiple_dataloader": False,
    "grpo.advantage_clip_high": None,
    "grpo.advantage_clip_low": None,
    "grpo.overlong_filtering": False,
    "grpo.reward_scaling.enabled": False,
    "grpo.reward_shaping.enabled": False,
    "grpo.stop_at_validation_metric": None,
    "grpo.use_dynamic_sampling": False,
    "grpo.val_at_end": False,
    "grpo.val_at_start": False,
    "grpo.val_period": 0,
}
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


def surroundings(run: Preflight) -> Iterator[Finding]:
    """What its setup asserts, or was never run with."""
    if not run.controlled:
        return
    if run["grpo.async_grpo"] is not None:
        yield error(
            "grpo.async_grpo",
            "the single controller reads its settings from async_rl only. Set `grpo.async_grpo: "
            "null`.",
        )
    if not run["data_plane.enabled"]:
        yield error(
            "data_plane.enabled",
            "the single controller sends its tensors through the data plane. Set it to true.",
        )
    if run.vllm and not run[f"{VLLM}.async_engine"]:
        yield error(f"{VLLM}.async_engine", "the single controller needs it. Set it to true.")
    if run.layout.colocated:
        yield error(
            f"{GENERATION}.colocated.enabled",
            "the single controller generates on separate GPUs. Set it to false, and set "
            "`colocated.resources`.",
        )
    if is_vlm(run["data"]):
        yield error(
            SINGLE_CONTROLLER,
            "the single controller only supports text prompts. Set `nemo_rl.config: "
            "vlm_grpo_3B.yaml`.",
        )
    if not run.megatron:
        yield error(
            f"{MEGATRON}.enabled",
            "only Megatron workers support the single controller's chunked updates. Set it to "
            "true.",
        )


def whole_step(run: Preflight) -> Iterator[Finding]:
    """A step is one optimizer update."""
    if run.controlled and run.rollouts != run[GLOBAL]:
        yield error(
            GLOBAL,
            "the single controller makes one update from all rollouts of a step. Set it to "
            f"{run.rollouts}.",
        )


def unread(run: Preflight) -> Iterator[Finding]:
    """What other trainers do, and it does not."""
    for path, off in UNREAD.items() if run.controlled else ():
        supported = run.nemo_rl.facts[READS + path.removesuffix(".enabled")]
        if run[path] not in (None, off) and not supported:
            yield error(
                path,
                f"the single controller of {run.nemo_rl.name} does not support it. Set it to "
                f"{json.dumps(off)}.",
            )


def validated_metric(run: Preflight) -> Iterator[Finding]:
    """Without validation it has no metric of one."""
    path = "checkpointing.metric_name"
    validates = run.nemo_rl.facts[f"{READS}grpo.val_period"]
    ranked = run["checkpointing.enabled"] and run[path] is not None
    if run.controlled and ranked and not validates and not str(run[path]).startswith("train:"):
        yield error(
            path,
            "the single controller runs no validation. Set null, or a train: metric such as "
            "train:reward.",
        )


def group_sampler(run: Preflight) -> Iterator[Finding]:
    """It is one that there is."""
    samplers = run.nemo_rl.samplers
    named = (run[f"{SINGLE_CONTROLLER}.sampler"] or {}).get("name", run.sampler)
    if run.controlled and named not in samplers:
        hint = did_you_mean(str(named), [*samplers])
        yield error(f"{SINGLE_CONTROLLER}.sampler.name", f"unknown sampler: {named}{hint}")


def buffer(run: Preflight) -> Iterator[Finding]:
    """Groups that are waited for fit the buffer and the step."""
    if not run.controlled:
        return
    prompts = run[PROMPTS]
    if not 1 <= run.chunk <= prompts:
        yield error(
            CHUNK, f"{run.chunk} is out of range: a step has {prompts} groups. Set it to {prompts}."
        )
    needed = prompts * (run.staleness + 1)
    room = 64 if run[BUFFER] is None else run[BUFFER]
    if run.sampler not in UNGATED and room < needed:
        yield error(
            BUFFER,
            f"{run.sampler} keeps up to {needed} groups, so the run would wait forever for room. "
            f"Set at least {needed}.",
        )


def stale_rollouts(run: Preflight) -> Iterator[Finding]:
    """Rollouts of an older policy are corrected, or are what the ratio is to.

    NeMo-RL insists where any older policy may have sampled.
    """
    if not run.controlled or run[CORRECTION] or (run.algorithm and run.algorithm.correction.active):
        return
    if run.sampler == "ready_first" or run.staleness:
        found = error if run.sampler == "ready_first" else warning
        yield found(
            CORRECTION,
            f"{run.sampler} trains on rollouts of older weights. Set `old_policy: sampler`, "
            "choose a `rollout_correction.preset`, or set this to true.",
        )


def chunks(run: Preflight) -> Iterator[Finding]:
    """A chunk of groups has no statistic of the whole step, nor the counts of a term."""
    a = run.algorithm
    prompts = run[PROMPTS]
    if a and run.controlled and run.chunk < prompts:
        for reader in whole_batch_readers(a):
            yield error(
                CHUNK,
                f"{reader} needs the whole step at once, but groups arrive in chunks of "
                f"{run.chunk} or more. Set it to {prompts}.",
            )


def whole_batch_readers(a: Algorithm) -> list[str]:
    """The parts of a method that are of all groups of a step at once."""
    parts = (a.base, a.advantages, a.bounds)
    found = {c.method.name for c in parts if c.method.whole_batch or c.params.whole_batch}
    found |= {a.name} if "memory" in a.needs else set()
    found |= {f"the term {each.term.name}" for each in a.terms}
    batchwise = a.correction.rollout_is_batch_normalize
    return sorted(found | ({"rollout_is_batch_normalize"} if batchwise else set()))


def advantage_workers(run: Preflight) -> Iterator[Finding]:
    """A newer controller's processes of advantages would keep the method's other signals."""
    if run.controlled and run[f"{SINGLE_CONTROLLER}.num_advantage_workers"]:
        yield error(
            f"{SINGLE_CONTROLLER}.num_advantage_workers",
            "the method's bounds are computed with its advantages, in the controller's process. "
            "Set it to 0.",
        )


def kept_rollouts(run: Preflight) -> Iterator[Finding]:
    """A newer controller resumes with its finished rollouts, and asks for them in checkpoints."""
    path = "checkpointing.save_data_plane"
    asked = path in run.nemo_rl.schema and run["checkpointing.enabled"] and not run[path]
    if run.controlled and asked and run.sampler != "custom":
        yield warning(
            path,
            "this NeMo-RL's single controller may only save checkpoints with their rollouts. Set "
            "it to true.",
        )


def reward_sum(run: Preflight) -> Iterator[Finding]:
    """Its queue carries the sum of the rewards alone."""
    a = run.algorithm
    if a and run.controlled and {"reward_parts", "turn_rewards"} & a.needs:
        yield error(
            SINGLE_CONTROLLER,
            f"{a.name} needs each reward, but the single controller keeps only their sum. {OTHER}",
        )


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
            yield note(
                path,
                f"{target or 'your class'} is also given the base config's "
                f"{', '.join(inherited)}: its constructor must take it, or async_rl must have "
                "_override_: true",
            )
        return
    for key in [k for k, value in section.items() if k not in read and value is not None]:
        near = did_you_mean(key, [other for other in read if other != "name"])
        yield error(
            f"{path}.{key}",
            f"the sampler {run.sampler} does not read it{near}. Remove it, or set it to null.",
        )


def deadlines(run: Preflight) -> Iterator[Finding]:
    """Times and ports are in their order."""
    if not run.controlled:
        return
    routed = [ROUTED] if _set(run, f"{ROUTER}.enabled") else []
    for word, rows in {"above": BELOW, "at least": (*AT_MOST, *routed)}.items():
        for lower, upper, reason in rows:
            low = _set(run, lower)
            high = _set(run, upper)
            fits = None in (low, high) or (low < high if word == "above" else low <= high)
            if not fits:
                yield error(
                    f"{SECTION}.{upper}",
                    f"{high:g} must be {word} `{SECTION}.{lower}: {low:g}`, or {reason}. Change "
                    "one of them.",
                )


def router_status(run: Preflight) -> Iterator[Finding]:
    """NeMo Gym gives up where the router has no engine."""
    path = f"{SECTION}.{ROUTER}.no_healthy_backend_status"
    if run.controlled and run.or_default(path) in RETRIED:
        yield error(
            path,
            f"NeMo Gym retries forever after {', '.join(map(str, RETRIED))}. Set another status, "
            "such as 409.",
        )


def dropped_prompts(run: Preflight) -> Iterator[Finding]:
    """A prompt that is given up leaves a step that can close: in_order alone counts it."""
    if not run.controlled or run.sampler == "custom":
        return
    prompts = run["grpo.num_prompts_per_step"]
    asked = [key for key in BUDGETS if _failure(run, key)]
    replaces = _failure(run, "on_dropped_prompt") == "replace"
    share = _failure(run, "min_step_batch_fraction")
    for key in asked if run.sampler != "in_order" else ():
        yield error(
            f"{SECTION}.{FAILURE}.{key}",
            f"{run.sampler} would wait forever for a prompt that was dropped. Set it to 0, or set "
            "`sampler.name: in_order`.",
        )
    whole = share is not None and math.ceil(prompts * share) >= prompts
    if asked and run.sampler == "in_order" and whole and not replaces:
        yield warning(
            f"{SECTION}.{FAILURE}.min_step_batch_fraction",
            f"every step must have all its prompts, so {asked[0]} never applies. Set a smaller "
            "share, or set `on_dropped_prompt: replace`.",
        )


def replacements(run: Preflight) -> Iterator[Finding]:
    """Prompts that replace others can be drawn, and are asked for."""
    if not run.controlled or _failure(run, "on_dropped_prompt") != "replace":
        return
    prompts = run["grpo.num_prompts_per_step"]
    for key in ("max_replacement_attempts", "replacement_reserve_prompts"):
        if not _failure(run, key):
            yield error(
                f"{SECTION}.{FAILURE}.{key}",
                "at 0, `on_dropped_prompt: replace` cannot replace any prompt. Set it to at least "
                "1.",
            )
    if (_failure(run, "replacement_reserve_prompts") or 0) > prompts:
        yield warning(
            f"{SECTION}.{FAILURE}.replacement_reserve_prompts",
            f"the reserve fills by whole steps of {prompts} prompts before sampling starts. Set "
            f"it to at most {prompts}.",
        )
    if run.sampler not in ("in_order", "custom"):
        yield warning(
            f"{SECTION}.{FAILURE}.on_dropped_prompt",
            f"{run.sampler} fills every step, so no prompt would be replaced. Set it to shrink.",
        )


def other_rollouts(run: Preflight) -> Iterator[Finding]:
    """Settings are of the rollouts that run: NeMo-RL's own, or NeMo Gym's."""
    if not run.controlled:
        return
    gym = uses_gym(run["env"])
    unread = f"{SECTION}.{FAILURE}.{'native' if gym else 'nemo_gym'}"
    whose = "NeMo-RL" if gym else "NeMo Gym"
    for path, schema in run.nemo_rl.schema.items():
        if path.startswith(f"{unread}.") and run[path] not in (None, schema.get("default")):
            yield error(
                path,
                f"only {whose} rollouts read it, and this config does not run them. Remove it.",
            )

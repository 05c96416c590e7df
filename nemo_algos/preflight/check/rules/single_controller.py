"""NeMo-RL's single controller: what it asserts, what it leaves undone, and what a chunk lacks."""

import json
import math
from collections.abc import Iterator
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.engines.nemo.derived_config import is_vlm, uses_gym
from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.check.both_engines import GLOBAL, PROMPTS
from nemo_algos.preflight.check.layout import MEGATRON, VLLM
from nemo_algos.preflight.check.layout import SINGLE_CONTROLLER as SECTION
from nemo_algos.preflight.check.release import READS
from nemo_algos.preflight.check.rule import CORRECTION, Preflight, error, errors, note, warning
from nemo_algos.preflight.check.rules.batch import CHUNK
from nemo_algos.preflight.check.rules.generation import GENERATION

OTHER = "Set `nemo_rl.config` to a base config without async_rl, such as grpo_math_1B.yaml."

BUFFER = f"{SECTION}.max_buffered_rollouts"
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
    """What its setup asserts, or was never run with; a step is one optimizer update."""
    if not run.controlled:
        return
    yield from errors(
        (
            run["grpo.async_grpo"] is not None,
            "grpo.async_grpo",
            "the single controller reads its settings from async_rl only. Set `grpo.async_grpo: "
            "null`.",
        ),
        (
            not run["data_plane.enabled"],
            "data_plane.enabled",
            "the single controller sends its tensors through the data plane. Set it to true.",
        ),
        (
            run.vllm and not run[f"{VLLM}.async_engine"],
            f"{VLLM}.async_engine",
            "the single controller needs it. Set it to true.",
        ),
        (
            run.layout.colocated,
            f"{GENERATION}.colocated.enabled",
            "the single controller generates on separate GPUs. Set it to false, and set "
            "`colocated.resources`.",
        ),
        (
            is_vlm(run["data"]),
            SECTION,
            "the single controller only supports text prompts. Set `nemo_rl.config: "
            "vlm_grpo_3B.yaml`.",
        ),
        (
            not run.megatron,
            f"{MEGATRON}.enabled",
            "only Megatron workers support the single controller's chunked updates. Set it to "
            "true.",
        ),
        (
            run.rollouts != run[GLOBAL],
            GLOBAL,
            "the single controller makes one update from all rollouts of a step. Set it to "
            f"{run.rollouts}.",
        ),
        (  # a newer one's processes of advantages would keep the method's other signals
            run[f"{SECTION}.num_advantage_workers"],
            f"{SECTION}.num_advantage_workers",
            "the method's bounds are computed with its advantages, in the controller's process. "
            "Set it to 0.",
        ),
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
    # without validation it has no metric of one
    metric = run["checkpointing.metric_name"]
    of_training = metric is None or str(metric).startswith("train:")
    validates = run.nemo_rl.facts[f"{READS}grpo.val_period"]
    if run.controlled and run["checkpointing.enabled"] and not validates and not of_training:
        yield error(
            "checkpointing.metric_name",
            "the single controller runs no validation. Set null, or a train: metric such as "
            "train:reward.",
        )


def samplers(run: Preflight) -> Iterator[Finding]:
    """The sampler is one that there is, and reads every key that is written for it."""
    if not run.controlled:
        return
    path = f"{SECTION}.sampler"
    known = run.nemo_rl.samplers
    named = (run[path] or {}).get("name", run.sampler)
    if named not in known:
        near = did_you_mean(str(named), [*known])
        yield error(f"{path}.name", f"unknown sampler: {named}{near}")
    read = [*known.get(run.sampler, ())]
    section = (run.written.get(SECTION) or {}).get("sampler") or {}
    if run.sampler == "custom" and read:
        target = str(run[f"{path}.target"] or "")
        if ":" not in target:
            reason = f"names no class, got {target!r}" if target else "it is missing"
            yield error(f"{path}.target", f"{reason}. Write the path of your class, module:Class.")
        inherited = [key for key in run[path] if key not in (*read, *section)]
        if inherited:
            yield note(
                path,
                f"{target or 'your class'} is also given the base config's "
                f"{', '.join(inherited)}: its constructor must take it, or async_rl must have "
                "_override_: true",
            )
        return
    for key, value in section.items():
        if not read or key in read or value is None:
            continue
        near = did_you_mean(key, [other for other in read if other != "name"])
        yield error(
            f"{path}.{key}",
            f"the sampler {run.sampler} does not read it{near}. Remove it, or set it to null.",
        )


def buffer(run: Preflight) -> Iterator[Finding]:
    """Groups that are waited for fit the buffer and the step; so do statistics of all of them."""
    if not run.controlled:
        return
    prompts = run[PROMPTS]
    needed = prompts * (run.staleness + 1)
    room = 64 if run[BUFFER] is None else run[BUFFER]
    if not 1 <= run.chunk <= prompts:
        yield error(
            CHUNK, f"{run.chunk} is out of range: a step has {prompts} groups. Set it to {prompts}."
        )
    if run.sampler not in UNGATED and room < needed:
        yield error(
            BUFFER,
            f"{run.sampler} keeps up to {needed} groups, so the run would wait forever for room. "
            f"Set at least {needed}.",
        )
    readers = whole_batch_readers(run.algorithm) if run.algorithm and run.chunk < prompts else []
    for reader in readers:
        yield error(
            CHUNK,
            f"{reader} needs the whole step at once, but groups arrive in chunks of "
            f"{run.chunk} or more. Set it to {prompts}.",
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


def whole_batch_readers(a: Algorithm) -> list[str]:
    """The parts of a method that are of all groups of a step at once."""
    found = set()
    for c in (a.base, a.advantages, a.bounds):
        if c.method.whole_batch or c.params.whole_batch:
            found.add(c.method.name)
    for each in a.terms:
        found.add(f"the term {each.term.name}")
    if "memory" in a.needs:
        found.add(a.name)
    if a.correction.rollout_is_batch_normalize:
        found.add("rollout_is_batch_normalize")
    return sorted(found)


def signals(run: Preflight) -> Iterator[Finding]:
    """Its queue carries the sum of the rewards alone, and a newer one resumes with its rollouts."""
    a = run.algorithm
    if a and run.controlled and {"reward_parts", "turn_rewards"} & a.needs:
        yield error(
            SECTION,
            f"{a.name} needs each reward, but the single controller keeps only their sum. {OTHER}",
        )
    path = "checkpointing.save_data_plane"
    asked = path in run.nemo_rl.schema and run["checkpointing.enabled"] and not run[path]
    if run.controlled and asked and run.sampler != "custom":
        yield warning(
            path,
            "this NeMo-RL's single controller may only save checkpoints with their rollouts. Set "
            "it to true.",
        )


def _set(run: Preflight, key: str) -> Any:
    """What a key below the section is, or is by default."""
    return run.or_default(f"{SECTION}.{key}")


def deadlines(run: Preflight) -> Iterator[Finding]:
    """Times and ports are in their order; NeMo Gym gives up where the router has no engine."""
    if not run.controlled:
        return
    routed = [ROUTED] if _set(run, f"{ROUTER}.enabled") else []
    for word, rows in {"above": BELOW, "at least": (*AT_MOST, *routed)}.items():
        for lower, upper, reason in rows:
            low = _set(run, lower)
            high = _set(run, upper)
            if None not in (low, high) and (low > high or (low == high and word == "above")):
                yield error(
                    f"{SECTION}.{upper}",
                    f"{high:g} must be {word} `{SECTION}.{lower}: {low:g}`, or {reason}. Change "
                    "one of them.",
                )
    if _set(run, f"{ROUTER}.no_healthy_backend_status") in RETRIED:
        yield error(
            f"{SECTION}.{ROUTER}.no_healthy_backend_status",
            f"NeMo Gym retries forever after {', '.join(map(str, RETRIED))}. Set another status, "
            "such as 409.",
        )


def dropped_prompts(run: Preflight) -> Iterator[Finding]:
    """A step can close without a prompt that is given up, or with another in its place."""
    if not run.controlled:
        return
    prompts = run[PROMPTS]
    failure = f"{SECTION}.{FAILURE}"
    replaces = run.or_default(f"{failure}.on_dropped_prompt") == "replace"
    # in_order alone counts it
    asked = []
    for key in BUDGETS:
        if run.or_default(f"{failure}.{key}"):
            asked.append(f"{failure}.{key}")
    for path in asked if run.sampler not in ("in_order", "custom") else ():
        yield error(
            path,
            f"{run.sampler} would wait forever for a prompt that was dropped. Set it to 0, or set "
            "`sampler.name: in_order`.",
        )
    share = run.or_default(f"{failure}.min_step_batch_fraction")
    whole = share is not None and math.ceil(prompts * share) >= prompts
    if asked and run.sampler == "in_order" and whole and not replaces:
        yield warning(
            f"{failure}.min_step_batch_fraction",
            f"every step must have all its prompts, so {asked[0].rpartition('.')[2]} never "
            "applies. Set a smaller share, or set `on_dropped_prompt: replace`.",
        )
    if not replaces:
        return
    reserve = run.or_default(f"{failure}.replacement_reserve_prompts") or 0
    for key in ("max_replacement_attempts", "replacement_reserve_prompts"):
        if not run.or_default(f"{failure}.{key}"):
            yield error(
                f"{failure}.{key}",
                "at 0, `on_dropped_prompt: replace` cannot replace any prompt. Set it to at least "
                "1.",
            )
    if reserve > prompts:
        yield warning(
            f"{failure}.replacement_reserve_prompts",
            f"the reserve fills by whole steps of {prompts} prompts before sampling starts. Set "
            f"it to at most {prompts}.",
        )
    if run.sampler not in ("in_order", "custom"):
        yield warning(
            f"{failure}.on_dropped_prompt",
            f"{run.sampler} fills every step, so no prompt would be replaced. Set it to shrink.",
        )


def other_rollouts(run: Preflight) -> Iterator[Finding]:
    """Settings are of the rollouts that run: NeMo-RL's own, or NeMo Gym's."""
    if not run.controlled:
        return
    unread = "nemo_gym"
    whose = "NeMo Gym"
    if uses_gym(run["env"]):
        unread = "native"
        whose = "NeMo-RL"
    section = f"{SECTION}.{FAILURE}.{unread}."
    for path, schema in run.nemo_rl.schema.items():
        if path.startswith(section) and run[path] not in (None, schema.get("default")):
            yield error(
                path,
                f"only {whose} rollouts read it, and this config does not run them. Remove it.",
            )

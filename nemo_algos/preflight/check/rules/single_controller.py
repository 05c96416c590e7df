"""NeMo-RL's single controller: what it asserts, what it leaves undone, and what a chunk lacks."""

import json
from collections.abc import Iterator

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.config import Finding, did_you_mean
from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.preflight.check.both_engines import GLOBAL, PROMPTS
from nemo_algos.preflight.check.layout import MEGATRON, SINGLE_CONTROLLER, VLLM
from nemo_algos.preflight.check.nemo_run import CORRECTION, Preflight
from nemo_algos.preflight.check.release import READS
from nemo_algos.preflight.check.rule import error, warning
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


def surroundings(run: Preflight) -> Iterator[Finding]:
    """What its setup asserts, or was never run with."""
    if not run.controlled:
        return
    if run["grpo.async_grpo"] is not None:
        reason = "the single controller reads its settings from async_rl only"
        yield error("grpo.async_grpo", f"{reason}. Set `grpo.async_grpo: null`.")
    if not run["data_plane.enabled"]:
        reason = "the single controller sends its tensors through the data plane"
        yield error("data_plane.enabled", f"{reason}. Set it to true.")
    if run.vllm and not run[f"{VLLM}.async_engine"]:
        yield error(f"{VLLM}.async_engine", "the single controller needs it. Set it to true.")
    if run.layout.colocated:
        reason = "the single controller generates on separate GPUs"
        cure = "Set it to false, and set `colocated.resources`."
        yield error(f"{GENERATION}.colocated.enabled", f"{reason}. {cure}")
    if is_vlm(run["data"]):
        reason = "the single controller only supports text prompts"
        yield error(SINGLE_CONTROLLER, f"{reason}. Set `nemo_rl.config: vlm_grpo_3B.yaml`.")
    if not run.megatron:
        reason = "only Megatron workers support the single controller's chunked updates"
        yield error(f"{MEGATRON}.enabled", f"{reason}. Set it to true.")


def whole_step(run: Preflight) -> Iterator[Finding]:
    """A step is one optimizer update."""
    if run.controlled and run.rollouts != run[GLOBAL]:
        reason = "the single controller makes one update from all rollouts of a step"
        yield error(GLOBAL, f"{reason}. Set it to {run.rollouts}.")


def unread(run: Preflight) -> Iterator[Finding]:
    """What other trainers do, and it does not."""
    for path, off in UNREAD.items() if run.controlled else ():
        supported = run.nemo_rl.facts[READS + path.removesuffix(".enabled")]
        if run[path] not in (None, off) and not supported:
            what = f"the single controller of {run.nemo_rl.name} does not support it"
            yield error(path, f"{what}. Set it to {json.dumps(off)}.")


def validated_metric(run: Preflight) -> Iterator[Finding]:
    """Without validation it has no metric of one."""
    path = "checkpointing.metric_name"
    validates = run.nemo_rl.facts[f"{READS}grpo.val_period"]
    ranked = run["checkpointing.enabled"] and run[path] is not None
    if run.controlled and ranked and not validates and not str(run[path]).startswith("train:"):
        reason = "the single controller runs no validation"
        yield error(path, f"{reason}. Set null, or a train: metric such as train:reward.")


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
        reason = f"{run.chunk} is out of range: a step has {prompts} groups"
        yield error(CHUNK, f"{reason}. Set it to {prompts}.")
    needed = prompts * (run.staleness + 1)
    room = 64 if run[BUFFER] is None else run[BUFFER]
    if run.sampler not in UNGATED and room < needed:
        reason = f"{run.sampler} keeps up to {needed} groups, so the run would wait forever"
        yield error(BUFFER, f"{reason} for room. Set at least {needed}.")


def stale_rollouts(run: Preflight) -> Iterator[Finding]:
    """Rollouts of an older policy are corrected, or are what the ratio is to.

    NeMo-RL insists where any older policy may have sampled.
    """
    if not run.controlled or run[CORRECTION] or (run.algorithm and run.algorithm.correction.active):
        return
    if run.sampler == "ready_first" or run.staleness:
        reason = f"{run.sampler} trains on rollouts of older weights"
        hint = (
            "Set `old_policy: sampler`, choose a `rollout_correction.preset`, or set this to true."
        )
        found = error if run.sampler == "ready_first" else warning
        yield found(CORRECTION, f"{reason}. {hint}")


def chunks(run: Preflight) -> Iterator[Finding]:
    """A chunk of groups has no statistic of the whole step, nor the counts of a term."""
    a = run.algorithm
    prompts = run[PROMPTS]
    if a and run.controlled and run.chunk < prompts:
        for reader in whole_batch_readers(a):
            reason = f"{reader} needs the whole step at once, but groups arrive in chunks of"
            yield error(CHUNK, f"{reason} {run.chunk} or more. Set it to {prompts}.")


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
    path = f"{SINGLE_CONTROLLER}.num_advantage_workers"
    if run.controlled and run[path]:
        reason = "the method's bounds are computed with its advantages, in the controller's process"
        yield error(path, f"{reason}. Set it to 0.")


def kept_rollouts(run: Preflight) -> Iterator[Finding]:
    """A newer controller resumes with its finished rollouts, and asks for them in checkpoints."""
    path = "checkpointing.save_data_plane"
    asked = path in run.nemo_rl.schema and run["checkpointing.enabled"] and not run[path]
    if run.controlled and asked and run.sampler != "custom":
        reason = "this NeMo-RL's single controller may only save checkpoints with their rollouts"
        yield warning(path, f"{reason}. Set it to true.")


def reward_sum(run: Preflight) -> Iterator[Finding]:
    """Its queue carries the sum of the rewards alone."""
    a = run.algorithm
    if a and run.controlled and {"reward_parts", "turn_rewards"} & a.needs:
        reason = f"{a.name} needs each reward, but the single controller keeps only their sum"
        yield error(SINGLE_CONTROLLER, f"{reason}. {OTHER}")

"""Keys of NeMo-RL that contradict a method: asked before `derive` sets the method's own keys."""

import json
from collections.abc import Iterator
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.loss_config import SET_BY_METHOD, LossConfig, contradictions
from nemo_algos.algorithms.extensions.sampler import sampler_changes
from nemo_algos.engines.nemo.derived_config import DECIDED, is_ratioless, uses_gym
from nemo_algos.findings import ConfigError, Finding, at, did_you_mean, validate
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON, VLLM
from nemo_algos.preflight.check.rule import CORRECTION, Preflight, errors, note

OURS_ALONE = "the method computes the advantages"
# what would change the meaning of a method: key, the only value, reason
FIXED: tuple[tuple[str, Any, str], ...] = (
    ("loss_fn.disable_ppo_ratio", False, "for a loss without a ratio, set `method.name: gpg`"),
    ("loss_fn.name", "clipped_pg", "the method computes the loss"),
    ("loss_fn.use_cispo", False, "for CISPO, set `method.name: cispo`"),
    ("loss_fn.positive_example_nll_weight", 0.0, "set `method.terms: {nll: {coef: ...}}` instead"),
    (
        "loss_fn.score_centering",
        False,
        "NeMo-RL centres the score of its own loss, and nobody has run that with the method's",
    ),
    ("loss_fn.use_kl_in_reward", False, "the method's KL penalty is part of the loss"),
    ("grpo.normalize_rewards", True, "set `method.advantage_std: none` instead"),
    ("on_policy_distillation.enabled", False, f"{OURS_ALONE}, so teachers would have no effect"),
    ("policy.reward_model_cfg.enabled", False, "the policy would have no language-model head"),
)
# refused by NeMo-RL's examples/run_grpo.py, whose part nemo.launch takes
NOT_ASYNC = (
    "grpo.use_dynamic_sampling",
    "grpo.reward_scaling.enabled",
    "grpo.reward_shaping.enabled",
    "data.use_multiple_dataloader",
)
# NeMo-RL's estimators by the methods that compute the same
ESTIMATORS = {"gdpo": "gdpo", "reinforce_pp_baseline": "reinforce_plus_plus"}
PROCESSED = "processed_logprobs"
SKIP = "grpo.skip_reference_policy_logprobs_calculation"
LENGTHS = "grpo.length_penalty"
FUSED = f"{MEGATRON}.use_fused_linear_logprobs"


def fixed(run: Preflight) -> Iterator[Finding]:
    """Keys that would change the meaning of a method have their one value."""
    for path, value, reason in FIXED:
        found = run[path]
        if found in (None, value):
            continue
        if path in DECIDED and at(run.written, path) is None:
            yield note(
                path,
                f"the run sets {json.dumps(value)}, the base config has {json.dumps(found)}: "
                f"{reason}.",
            )
        else:
            yield Finding(path, f"must be {json.dumps(value)}, got {json.dumps(found)}: {reason}")
    for path in ("grpo.advantage_clip_low", "grpo.advantage_clip_high"):
        if run[path] is not None:
            yield note(
                path,
                f"NeMo-RL clips the advantages of {run.known.name} at {run[path]}; its bounds and "
                "terms are of those before.",
            )


def forced_on_policy(run: Preflight) -> Iterator[Finding]:
    """Without a ratio, and with one update per batch, the old policy's log-probs are needless."""
    path = "loss_fn.force_on_policy_ratio"
    own = "policy.train_global_batch_size"
    watched = [k for k in ("stop_above", "dump") if run[f"mismatch.{k}"]]
    if not run[path]:
        return
    if not is_ratioless(run.known):
        reason = f"it sets every ratio to 1, but {run.known.name} uses ratios"
        if at(run.written, path) is None:
            yield note(path, f"the base config has it: {reason}. The run sets it to false.")
        else:
            yield Finding(path, f"{reason}. Set it to false.")
    elif run[own] != run.rollouts:
        yield Finding(
            path,
            f"it needs one update per rollout batch, but `{own}` is {run[own]}. Set that to "
            f"{run.rollouts}.",
        )
    elif run["data_plane.enabled"]:
        yield Finding(
            path, "the method's columns in the data plane need the old log-probs. Set it to false."
        )
    elif watched:
        yield Finding(
            path,
            f"without old log-probs, `mismatch.{watched[0]}` has nothing to compare. Set it to "
            f"false, or remove `mismatch.{watched[0]}`.",
        )


def derived_keys(run: Preflight) -> Iterator[Finding]:
    """What both engines have means the same, so the embedded engine's schema judges it."""
    method, params = run.known.bounds
    keys = []
    for key in type(params).model_fields:
        if "clip" in key and key != "dual_clip":
            keys.append(f"`method.{key}`")
    clips = "the method clips. Remove it."
    if keys:
        clips += f" {method.name} has {', '.join(keys)}."
    reasons = SET_BY_METHOD | {"ratio_clip_min": clips, "ratio_clip_max": clips}
    for key in SET_BY_METHOD:
        if key in (run.written.get("loss_fn") or {}):
            yield Finding(f"loss_fn.{key}", reasons[key])
    if run["loss_fn.reference_policy_kl_type"] == "unbiased":
        reason = "only the embedded engine supports unbiased here; NeMo-RL has a separate key"
        yield Finding(
            "loss_fn.reference_policy_kl_type",
            f"{reason}. Set it to k3, and set `loss_fn.use_on_policy_kl_approximation: true`.",
        )
    shared = {}
    for k, v in run["loss_fn"].items():
        if k in LossConfig.model_fields:
            shared[k] = v
    try:
        validate(LossConfig, shared, "loss_fn")
    except ConfigError as error:
        yield from error.findings


def corrections(run: Preflight) -> Iterator[Finding]:
    """The correction agrees with NeMo-RL's keys; an asynchronous run has one, for old weights."""
    correction = run.known.correction
    yield from contradictions(correction, bool(run[CORRECTION]), run["mismatch.stop_above"])
    if correction.bypass_mode and run["grpo.seq_logprob_error_threshold"] is not None:
        yield Finding(
            "grpo.seq_logprob_error_threshold",
            "with `old_policy: sampler` (bypass_mode) the trainer's old log-probs are not "
            "computed. Set it to null, or set a rollout_rs.",
        )
    apart = run["grpo.async_grpo.enabled"]
    if apart and not run.corrected:
        yield Finding(
            CORRECTION,
            "asynchronous GRPO needs it because rollouts come from old weights. Set it to true, "
            "or set a `rollout_correction.preset`.",
        )
    for path in NOT_ASYNC:
        if apart and run[path]:
            yield Finding(path, "asynchronous GRPO does not support it. Set it to false.")


def estimators(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL's estimators are replaced by the method's: one that is asked for is refused."""
    method, params = run.known.advantages
    path = "grpo.adv_estimator"
    name = run[f"{path}.name"]
    weights = run[f"{path}.reward_weights"]
    if method.name == "gdpo" and weights and not params.reward_weights:
        yield Finding(
            f"{path}.reward_weights",
            f"{OURS_ALONE}, so these are not used. Set `method.reward_weights: {weights}`, and "
            "remove it here.",
        )
    elif at(run.written, path) is not None:
        yield Finding(path, f"{OURS_ALONE}, so NeMo-RL's estimator is not used. Remove it.")
    elif name not in (None, "grpo", ESTIMATORS.get(method.name)):
        yield note(
            path, f"{OURS_ALONE}, so the estimator of this base config ({name}) is not used."
        )
    if at(run.written, "grpo.use_leave_one_out_baseline"):
        yield Finding(
            "grpo.use_leave_one_out_baseline",
            f"{OURS_ALONE}, and dynamic sampling would use it to drop single responses of a "
            "group. Remove it.",
        )


def success_readers(a: Algorithm) -> list[str]:
    """The parts of a method that take rewards for right and wrong: R in [0, 1], or R > 0."""
    unit = [a.advantages.method.name] if "unit_rewards" in a.advantage_needs else []
    return sorted({*a.success_readers, *unit})


def reshaped_rewards(run: Preflight) -> Iterator[Finding]:
    """Successes are told by the rewards before they are shaped."""
    remembered = {"unit_rewards", "memory"} <= run.known.advantage_needs
    for path in ("grpo.reward_scaling.enabled", "grpo.reward_shaping.enabled"):
        if remembered and run[path]:
            yield Finding(
                path,
                f"{run.known.advantages.method.name} compares rewards with a success rate, and "
                "this changes their scale. Set it to false.",
            )


def length_penalties(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL shapes rewards of 0 and 1 by length, in groups that NeMo Gym has rolled out."""
    if not run[LENGTHS]:
        return
    method = run.known.advantages.method.name
    needs = run.known.advantage_needs
    yield from errors(
        (
            not uses_gym(run["env"]),
            LENGTHS,
            "NeMo-RL only applies it to NeMo Gym's rollouts, and refuses it elsewhere. Remove it, "
            "or set `env.should_use_nemo_gym: true`.",
        ),
        (
            needs & {"reward_parts", "turn_rewards"},
            LENGTHS,
            f"NeMo-RL leaves rewards of several parts as they are, and {method} trains on the "
            "parts, so the penalty would apply nowhere. Remove it.",
        ),
        (
            {"unit_rewards", "memory"} <= needs,
            LENGTHS,
            f"{method} compares rewards with a success rate, and this changes their scale. Remove "
            "it.",
        ),
    )


def dropped_groups(run: Preflight) -> Iterator[Finding]:
    """Dynamic sampling drops no group that the method reads."""
    algorithm = run.known
    path = "grpo.use_dynamic_sampling"
    if not run[path]:
        return
    parts = {"method": algorithm.base, "method.bounds": algorithm.bounds}
    batchwise = [k for k, part in parts.items() if part.params.whole_batch]
    if batchwise:
        yield Finding(
            path,
            f"it drops groups that the batch statistics of {parts[batchwise[0]].method.name} "
            f"need. Set {batchwise[0]}.statistics: group, or set this to false.",
        )
    # of several rewards a group is dropped only where each of them is equal
    components = {c.method.name: c for c in (algorithm.base, algorithm.advantages)}
    trained = []
    for c in components.values():
        if "reward_parts" not in c.method.needs:
            trained.append(c)
    for component in trained:
        if component.method.whole_batch:
            yield Finding(
                path,
                f"it drops groups that the batch statistics of {component.method.name} need. Set "
                "it to false.",
            )
    if not all(c.flat_group_is_inert or c.method.whole_batch for c in trained):
        yield Finding(
            path,
            f"it drops groups with equal rewards, but {algorithm.name} also trains on those. Set "
            "it to false.",
        )


def references(run: Preflight) -> Iterator[Finding]:
    """The reference's log-probs are computed, and of the distribution that the policy's are of."""
    name = run.known.name
    compared = "ref_logprobs" in run.known.needs
    if run[SKIP] and run["loss_fn.reference_policy_kl_penalty"]:
        yield Finding(SKIP, "the KL penalty needs the reference log-probs. Set it to false.")
    elif at(run.written, SKIP) and compared:
        yield Finding(SKIP, f"{name} needs the reference log-probs. Remove it.")
    of_one = {  # the values at which it applies to neither, and how to write one of them
        "policy.generation.top_p": ((None, 1), "1.0"),
        "policy.generation.top_k": ((None, -1, 0), "null"),
        "policy.router_replay.enabled": ((None, False), "false"),
    }
    for path, (neither, off) in of_one.items():
        if compared and run[path] not in neither:
            yield Finding(
                path,
                "NeMo-RL applies it to the policy's log-probs but not to the reference's, and "
                f"{name} compares the two. Set it to {off}.",
            )


def unmet_needs(run: Preflight) -> Iterator[Finding]:
    """What a method needs, and NeMo-RL does not have, or not with a key."""
    name = run.known.name
    needs = run.known.needs
    yield from errors(
        (  # a missing `_v2` is false
            needs & {"entropy", "entropy_gradient"}
            and run[f"{DTENSOR}.enabled"]
            and not run[f"{DTENSOR}._v2"],
            f"{DTENSOR}._v2",
            f"{name} needs exact entropies, which only DTensor v2 and Megatron support. "
            "Set it to true.",
        ),
        (
            "drift" in needs,
            "method",
            f"{name} measures how far each update moved the policy, which NeMo-RL does "
            "not support. For spo, set forgetting: constant.",
        ),
        (
            "teacher" in needs,
            "method",
            f"{name} learns from a teacher, but NeMo-RL's reference is the initial "
            "policy, so nothing would be learned. Train it in the embedded engine.",
        ),
        (
            "entropy_gradient" in needs and run[FUSED],
            FUSED,
            f"{name} needs logits for the gradient of the entropy, but with this key "
            "none are computed. Set it to false.",
        ),
        (
            "turn_rewards" in needs and run["grpo.reward_scaling.enabled"],
            "grpo.reward_scaling.enabled",
            f"it scales the whole reward, and not what {name} reads of each turn. Set it to false.",
        ),
        (
            "reward_parts" in run.known.advantage_needs and run["grpo.reward_shaping.enabled"],
            "grpo.reward_shaping.enabled",
            f"NeMo-RL only shapes the sum of the rewards. {name} trains on each reward, so the "
            "penalty would apply nowhere. Set it to false.",
        ),
    )


def logprobs(run: Preflight) -> Iterator[Finding]:
    """Fused layers give the trainer's log-probs; vLLM's raw ones are of another distribution."""
    yield from errors(
        (
            run[f"{MEGATRON}.use_linear_ce_fusion_loss"],
            f"{MEGATRON}.use_linear_ce_fusion_loss",
            "NeMo-RL only supports it for SFT and DPO. Set it to false.",
        ),
        (
            run[FUSED] and run["policy.generation.temperature"] != 1,
            "policy.generation.temperature",
            "NeMo-RL divides fused log-probs by the temperature instead of the logits. Set it to "
            f"1, or set {FUSED}: false.",
        ),
    )
    section = run[VLLM] or {}
    mode = section.get("logprobs_mode", PROCESSED) or "raw_logprobs"
    if mode not in (PROCESSED, "raw_logprobs"):
        yield Finding(
            f"{VLLM}.logprobs_mode", f"unknown value: {mode}{did_you_mean(str(mode), [PROCESSED])}"
        )
    shared = {}
    for key in ("temperature", "top_p", "top_k"):
        shared[key] = run[f"policy.generation.{key}"]
    for key in sampler_changes(shared, 1.0) if mode == "raw_logprobs" else ():
        yield Finding(
            f"{VLLM}.logprobs_mode",
            f"raw_logprobs do not include {key}={shared[key]}, but the trainer's log-probs do. "
            f"Corrections would treat the sampler as another policy. Set it to {PROCESSED}.",
        )
    if run["loss_fn.use_importance_sampling_correction"] or run.known.correction.active:
        engine = run["policy.generation.vllm_kwargs"] or {}
        told = {"logits_processors": engine.get("logits_processors")}
        told |= engine.get("override_generation_config") or {}
        for key, reason in sampler_changes(told, shared["temperature"]).items():
            section = "" if key in engine else "override_generation_config."
            yield Finding(f"policy.generation.vllm_kwargs.{section}{key}", reason)


def untried_gym(run: Preflight) -> Iterator[Finding]:
    """What NeMo Gym has never run with here."""
    backend = run["policy.generation.backend"]
    if not uses_gym(run["env"]):
        return
    yield from errors(
        (
            run.controlled,
            "env.should_use_nemo_gym",
            "NeMo Gym has not been run here with the single controller. Use a base config without "
            "async_rl.",
        ),
        (
            run["policy.is_vlm"],
            "policy.is_vlm",
            "NeMo Gym has only been run here with text. Use a base config without images or "
            "videos.",
        ),
        (
            backend not in ("vllm", "megatron"),
            "policy.generation.backend",
            f"NeMo Gym has not been run here with {backend}. Set it to vllm.",
        ),
    )

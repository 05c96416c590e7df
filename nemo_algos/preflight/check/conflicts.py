"""Keys of NeMo-RL's config that contradict a method; every one is refused, before `derive`."""

import json
from collections.abc import Iterator
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.riders.loss_config import DERIVED, LossConfig, contradictions
from nemo_algos.config import ConfigError, Finding, at, did_you_mean, validate
from nemo_algos.preflight.check import precision
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON, VLLM
from nemo_algos.preflight.check.precision import CORRECTION

OURS_ALONE = "the advantages are the method's"
# what would change the meaning of a method: key, the only value, reason
FIXED: tuple[tuple[str, Any, str], ...] = (
    ("loss_fn.disable_ppo_ratio", False, "a method without a ratio is method.name: gpg"),
    ("loss_fn.cls_fqn", None, "the loss is the method's"),
    ("loss_fn.use_cispo", False, "set method.name: cispo"),
    ("loss_fn.force_on_policy_ratio", False, "it makes every ratio 1"),
    ("loss_fn.positive_example_nll_weight", 0.0, "set method.terms: {nll: {coef: ...}}"),
    ("loss_fn.use_kl_in_reward", False, "the method's advantages read no KL; it stays in the loss"),
    ("grpo.normalize_rewards", True, "set method.advantage_std: none"),
    ("grpo.advantage_clip_low", None, OURS_ALONE),
    ("grpo.advantage_clip_high", None, OURS_ALONE),
    ("grpo.invalid_tool_call_advantage", None, OURS_ALONE),
    ("grpo.malformed_thinking_advantage", None, OURS_ALONE),
    ("on_policy_distillation.enabled", False, f"{OURS_ALONE}: teachers would run for nothing"),
    ("policy.reward_model_cfg.enabled", False, "the policy would have no language-model head"),
)
# refused by NeMo-RL's examples/run_grpo.py, whose part nemo.launch takes
NOT_ASYNC = (
    "grpo.use_dynamic_sampling",
    "grpo.reward_scaling.enabled",
    "grpo.reward_shaping.enabled",
    "data.use_multiple_dataloader",
)
RESHAPED = ("grpo.reward_scaling.enabled", "grpo.reward_shaping.enabled")
PROCESSED = "processed_logprobs"
SKIP = "grpo.skip_reference_policy_logprobs_calculation"


def conflicts(plain: dict[str, Any], written: Any, algorithm: Algorithm) -> list[Finding]:
    """Every key that contradicts the method; written: the user's, without NeMo-RL's defaults."""
    corrected = bool(at(plain, CORRECTION) or algorithm.correction.active)
    return [
        *_fixed(plain),
        *_loss(plain, written),
        *_correction(plain, algorithm),
        *precision.conflicts(plain, corrected),
        *_async(plain, corrected),
        *_estimator(plain, written),
        *_rewards(plain, algorithm),
        *_dynamic_sampling(plain, algorithm),
        *_reference(plain, written, algorithm),
        *_fused_logprobs(plain),
        *_sampler_logprobs(plain),
        *_entropy(plain, algorithm),
        *_terms(algorithm),
        *_drift(algorithm),
        *_teacher(algorithm),
        *_single_controller(plain, written),
    ]


def _fixed(plain: dict[str, Any]) -> Iterator[Finding]:
    for path, value, reason in FIXED:
        found = at(plain, path)
        if found is not None and found != value:
            yield Finding(path, f"must stay {json.dumps(value)}: {reason}")


def _loss(plain: dict[str, Any], written: Any) -> Iterator[Finding]:
    """What both engines have means the same, so the embedded engine's schema judges it."""
    for key, reason in DERIVED.items():
        if key in (written.get("loss_fn") or {}):
            yield Finding(f"loss_fn.{key}", f"is {reason}")
    shared = {k: v for k, v in plain["loss_fn"].items() if k in LossConfig.model_fields}
    try:
        validate(LossConfig, shared, "loss_fn")
    except ConfigError as error:
        yield from error.findings


def _correction(plain: dict[str, Any], algorithm: Algorithm) -> Iterator[Finding]:
    limit, threshold = at(plain, "mismatch.stop_above"), "grpo.seq_logprob_error_threshold"
    yield from contradictions(algorithm.correction, bool(at(plain, CORRECTION)), limit)
    if algorithm.correction.bypass_mode and at(plain, threshold) is not None:
        reason = "in bypass_mode the trainer's log-probs are the sampler's, and no error is seen"
        yield Finding(threshold, f"{reason}: set null, or a rollout_rs")


def _async(plain: dict[str, Any], corrected: bool) -> Iterator[Finding]:
    if not at(plain, "grpo.async_grpo.enabled"):
        return
    if not corrected:
        reason = "asynchronous GRPO needs it, for its rollouts are old: set true"
        yield Finding(CORRECTION, f"{reason}, or choose a rollout_correction.preset")
    for path in NOT_ASYNC:
        if at(plain, path):
            yield Finding(path, "asynchronous GRPO does not do it: set it to false")


def _estimator(plain: dict[str, Any], written: Any) -> Iterator[Finding]:
    """NeMo-RL's estimators are replaced by the method's: one that is asked for is refused."""
    path = "grpo.adv_estimator"
    name = at(plain, f"{path}.name")
    if at(written, path) is not None:
        yield Finding(path, f"{OURS_ALONE}, NeMo-RL's estimator would not be read: remove it")
    elif name not in (None, "grpo"):
        yield Finding(path, f"{OURS_ALONE}, and this base config has {name}: choose another one")
    path = "grpo.use_leave_one_out_baseline"
    if at(written, path):
        reason = "dynamic sampling would drop single responses of a group by it"
        yield Finding(path, f"{OURS_ALONE}, and {reason}: remove it")


def success_readers(a: Algorithm) -> list[str]:
    """The parts of a method that take rewards for right and wrong: R in [0, 1], or R > 0."""
    parts = {"advantages": a.advantages, "bounds": a.bounds, "loss": a.base}
    found = {c.method.name for slot, c in parts.items() if slot in c.method.success}
    if "unit_rewards" in a.advantage_needs:
        found.add(a.advantages.method.name)
    whole = (each for each in a.terms if each.term.success and not each.params.success_reward)
    return sorted(found.union(each.term.name for each in whole))


def _rewards(plain: dict[str, Any], algorithm: Algorithm) -> Iterator[Finding]:
    """Pass rates and means of rewards need the verifier's own; NeMo-RL shapes no part of them."""
    names = "+".join(success_readers(algorithm))
    for path in RESHAPED:
        if names and at(plain, path):
            yield Finding(path, f"{names} tells right from wrong by the rewards: switch it off")
    path = "grpo.reward_shaping.enabled"
    if "reward_parts" in algorithm.advantage_needs and at(plain, path):
        reason = "NeMo-RL shapes the sum of the rewards, and not the parts that"
        hint = "so the penalty would be trained nowhere: switch it off"
        yield Finding(path, f"{reason} {algorithm.name} trains on, {hint}")


def _dynamic_sampling(plain: dict[str, Any], algorithm: Algorithm) -> Iterator[Finding]:
    path = "grpo.use_dynamic_sampling"
    if not at(plain, path):
        return
    parts = {"method": algorithm.base, "method.bounds": algorithm.bounds}
    if batchwise := [k for k, part in parts.items() if part.params.whole_batch]:
        reason = f"drops groups before {parts[batchwise[0]].method.name}'s batch statistics"
        yield Finding(path, f"{reason}: set {batchwise[0]}.statistics: group, or switch it off")
    if algorithm.advantages.method.whole_batch:
        reason = f"drops groups before {algorithm.advantages.method.name}'s statistics of the batch"
        yield Finding(path, f"{reason}, which would be of the rest alone: switch it off")
    trained = (algorithm.base.method, algorithm.advantages.method)
    if not all(method.flat_group_is_inert for method in trained):
        reason = f"drops groups of equal rewards, which {algorithm.name} trains on too"
        yield Finding(path, f"{reason}: switch it off")


def _reference(plain: dict[str, Any], written: Any, algorithm: Algorithm) -> Iterator[Finding]:
    compared = "ref_logprobs" in algorithm.needs
    if at(plain, SKIP) and at(plain, "loss_fn.reference_policy_kl_penalty"):
        yield Finding(SKIP, "the KL penalty needs the reference's log-probs: set it to false")
    elif at(written, SKIP) and compared:
        yield Finding(SKIP, f"{algorithm.name} needs the reference's log-probs: remove it")
    top_p, top_k = (at(plain, f"policy.generation.{key}") for key in ("top_p", "top_k"))
    of_one = {
        "policy.generation.top_p": top_p not in (None, 1),
        "policy.generation.top_k": top_k not in (None, -1, 0),
        "policy.router_replay.enabled": at(plain, "policy.router_replay.enabled"),
    }
    for path, applied in of_one.items():
        if compared and applied:
            reason = "NeMo-RL applies it to the policy's log-probs and not to the reference's, and"
            yield Finding(path, f"{reason} {algorithm.name} compares the two: switch it off")


def _entropy(plain: dict[str, Any], algorithm: Algorithm) -> Iterator[Finding]:
    """NeMo-RL reads a missing `_v2` as false."""
    old = at(plain, f"{DTENSOR}.enabled") and not at(plain, f"{DTENSOR}._v2")
    if "entropy" in algorithm.needs and old:
        what = f"{algorithm.name} needs exact entropies, which our extension gives for DTensor v2"
        yield Finding(f"{DTENSOR}._v2", f"{what} and Megatron: set it to true")


def _terms(algorithm: Algorithm) -> Iterator[Finding]:
    for added in algorithm.terms:
        if "entropy_gradient" in added.term.needs:
            what = "needs the gradient of the entropy, and NeMo-RL gives its loss log-probs alone"
            hint = "train it in the embedded engine, or remove it"
            yield Finding(f"method.terms.{added.term.name}", f"{what}: {hint}")


def _drift(algorithm: Algorithm) -> Iterator[Finding]:
    if "drift" in algorithm.needs:
        what = "needs how far each batch moved the policy, and NeMo-RL scores no response again"
        hint = "of spo, set forgetting: constant"
        yield Finding("method", f"{algorithm.name} {what} after its update: {hint}")


def _teacher(algorithm: Algorithm) -> Iterator[Finding]:
    if "teacher" in algorithm.needs:
        what = (
            f"{algorithm.name} learns from a teacher, and NeMo-RL's reference is the policy's own"
        )
        hint = "start, so nothing would be learned: train it in the embedded engine"
        yield Finding("method", f"{what} {hint}")


def _fused_logprobs(plain: dict[str, Any]) -> Iterator[Finding]:
    if at(plain, f"{MEGATRON}.use_linear_ce_fusion_loss"):
        reason = "NeMo-RL v0.7.0 has it for SFT and DPO only: switch it off"
        yield Finding(f"{MEGATRON}.use_linear_ce_fusion_loss", reason)
    temperature = at(plain, "policy.generation.temperature")
    if at(plain, f"{MEGATRON}.use_fused_linear_logprobs") and temperature != 1:
        reason = "NeMo-RL divides fused log-probs, not logits, by the temperature: set it to 1, or"
        hint = f"{reason} {MEGATRON}.use_fused_linear_logprobs to false"
        yield Finding("policy.generation.temperature", hint)


def _sampler_logprobs(plain: dict[str, Any]) -> Iterator[Finding]:
    """vLLM's raw log-probs are those before the temperature and the filters; null is vLLM's raw."""
    path, section = f"{VLLM}.logprobs_mode", at(plain, VLLM) or {}
    mode = section.get("logprobs_mode", PROCESSED) or "raw_logprobs"
    if mode not in (PROCESSED, "raw_logprobs"):
        yield Finding(path, f"no such value: {mode}{did_you_mean(str(mode), [PROCESSED])}")
    usual = {"temperature": (None, 1), "top_p": (None, 1), "top_k": (None, -1, 0)}
    for key, off in usual.items():
        found = at(plain, f"policy.generation.{key}")
        if mode == "raw_logprobs" and found not in off:
            what = f"raw_logprobs are before {key}={found}, which the trainer's log-probs have, so"
            reason = "the sampler would seem another policy, to corrections and the monitor"
            yield Finding(path, f"{what} {reason}: set {PROCESSED}")


def _single_controller(plain: dict[str, Any], written: Any) -> Iterator[Finding]:
    asked = written.get("single_controller") or at(plain, "grpo.single_controller.enabled")
    if asked or plain.get("async_rl"):  # the section of its own example configs
        reason = "NeMo-RL's single controller is not supported: it takes advantages of chunks and"
        hint = f"{reason} a fixed list of columns; use grpo_train, async or data_plane"
        yield Finding("single_controller", hint)

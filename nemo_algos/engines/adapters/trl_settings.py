"""What is asked of TRL and the loss, judged: what TRL lacks, what of TRL's the loss replaces."""

import copy
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from trl import GRPOConfig

from nemo_algos import Algorithm, ConfigError, Finding, LossConfig, build, validate

NEUTRAL = {"top_p": (1.0,), "top_k": (0, -1, None), "min_p": (0.0, None)}  # no token is left out
GIVEN = {"ref_logprobs", "entropy", "entropy_gradient", "memory", "unit_rewards"}  # of all needs
CORRECTION = "vllm_importance_sampling_correction"
REPLACED = {  # by how their names begin
    "beta": "set loss_fn.reference_policy_kl_penalty",
    "delta": "set method.dual_clip",
    "entropy_": "set method.terms: {entropy: {coef: ...}}",
    "epsilon": "set method.clip_low and method.clip_high",
    "importance_sampling_level": "choose a method of sequence ratios, gspo or quatro",
    "loss_type": "choose a method, and method.aggregation",
    "multi_objective_aggregation": "rewards are summed, and the method normalises the sum",
    "off_policy_mask_threshold": "set loss_fn.truncated_importance_sampling_type",
    "sapo_": "choose a method of ours",
    "scale_rewards": "set method.advantage_std",
    "top_entropy_quantile": "every token is in the loss",
    "use_adaptive_entropy": "set method.terms: {adaptive_entropy: {target: ...}}",
    "use_bias_correction_kl": "set loss_fn.reference_policy_kl_type: unbiased for True, else k3",
    "use_liger_kernel": "log-probs and entropies come from TRL's own fused head",
    "vespo_": "choose a method of ours",
    "vllm_importance_sampling_cap": "set loss_fn.truncated_importance_sampling_ratio",
    "vllm_importance_sampling_clip": "set loss_fn.truncated_importance_sampling_ratio",
    "vllm_importance_sampling_mode": "set loss_fn.truncated_importance_sampling_type",
}

UNBALANCED = Finding("args.router_aux_loss_coef", "the loss does not balance experts: set it to 0")


def judged(
    method: Any, loss_fn: Any, args: GRPOConfig, sampled: bool
) -> tuple[Algorithm, LossConfig, GRPOConfig]:
    """The blocks `method:` and `loss_fn:`, and args with beta 1 where TRL must keep a reference.

    sampled: whether a function of the user's gives the sampler's log-probs. Raises ConfigError with
    every finding.
    """
    algorithm = build(method).limited(args.max_completion_length)
    loss = validate(LossConfig, dict(loss_fn or {}), "loss_fn")
    if findings := [*misfits(algorithm, args), *_unsampled(loss, args, sampled)]:
        raise ConfigError(findings)
    args, penalty = copy.copy(args), loss.reference_policy_kl_penalty
    args.beta = float("ref_logprobs" in algorithm.needs or penalty > 0)  # TRL's only switch
    return algorithm, loss, args


def _unsampled(loss: LossConfig, args: GRPOConfig, sampled: bool) -> Iterator[Finding]:
    """Why the sampler's log-probs are missing, or of another distribution than the trainer's."""
    if not loss.use_importance_sampling_correction:
        return
    if not (args.use_vllm or sampled):
        key = "loss_fn.use_importance_sampling_correction"
        reason = "needs the sampler's log-probs, which TRL has with use_vllm=True or a rollout_func"
        yield Finding(key, f"{reason} alone: set it to False, or use one of them")
    for name, neutral in NEUTRAL.items():
        if args.use_vllm and getattr(args, name) not in neutral:
            reason = (
                "vLLM's log-probs are of the tokens that it leaves, the trainer's of all tokens"
            )
            yield Finding(
                f"args.{name}", f"{reason}, and the correction would weigh by the gap: remove it"
            )


def misfits(algorithm: Algorithm, args: GRPOConfig) -> Iterator[Finding]:
    """Each with what to do about it."""
    if missing := sorted(algorithm.needs - GIVEN):
        yield Finding("method", f"{algorithm.name} needs {', '.join(missing)}, which TRL has not")
    for field in fields(GRPOConfig):
        advice = next((v for k, v in REPLACED.items() if field.name.startswith(k)), None)
        if advice and getattr(args, field.name) != field.default:
            yield Finding(f"args.{field.name}", f"is of TRL's own loss: leave it out; {advice}")
    if args.use_vllm and getattr(args, CORRECTION):
        ours = "set it to False, and loss_fn.use_importance_sampling_correction for ours"
        yield Finding(f"args.{CORRECTION}", f"is of TRL's own loss: {ours}")
    if args.steps_per_generation % args.gradient_accumulation_steps:
        reason = "must be a multiple of gradient_accumulation_steps, so that a generation batch "
        yield Finding("args.steps_per_generation", reason + "is whole optimizer batches")

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
    "beta": "set `loss_fn.reference_policy_kl_penalty`",
    "delta": "set `method.dual_clip`",
    "entropy_": "set `method.terms: {entropy: {coef: ...}}`",
    "epsilon": "set `method.clip_low` and `method.clip_high`",
    "importance_sampling_level": "for sequence ratios set `method.name: gspo` or quatro",
    "loss_type": "set `method.name` and `method.aggregation`",
    "multi_objective_aggregation": "rewards are summed, and the method normalises the sum",
    "off_policy_mask_threshold": "set `loss_fn.truncated_importance_sampling_type`",
    "sapo_": "set `method.name: sapo`",
    "scale_rewards": "set `method.advantage_std`",
    "top_entropy_quantile": "every token is in the loss",
    "use_adaptive_entropy": "set `method.terms: {adaptive_entropy: {target: ...}}`",
    "use_bias_correction_kl": "set `loss_fn.reference_policy_kl_type: unbiased` for True, else k3",
    "use_liger_kernel": "log-probs and entropies come from TRL's own fused head",
    "vespo_": "set `method.name: vespo`",
    "vllm_importance_sampling_cap": "set `loss_fn.truncated_importance_sampling_ratio`",
    "vllm_importance_sampling_clip": "set `loss_fn.truncated_importance_sampling_ratio`",
    "vllm_importance_sampling_mode": "set `loss_fn.truncated_importance_sampling_type`",
}

UNBALANCED = Finding("args.router_aux_loss_coef", "the loss cannot balance experts. Set it to 0.")


def judge(
    method: Any, loss_fn: Any, args: GRPOConfig, sampled: bool
) -> tuple[Algorithm, LossConfig, GRPOConfig]:
    """The blocks `method:` and `loss_fn:`, and args with beta 1 where TRL must keep a reference.

    sampled: whether a function of the user's gives the sampler's log-probs. Raises ConfigError with
    every finding.
    """
    algorithm = build(method).with_max_tokens(args.max_completion_length)
    loss = validate(LossConfig, dict(loss_fn or {}), "loss_fn")
    if findings := [*misfits(algorithm, args), *_sampler_findings(loss, args, sampled)]:
        raise ConfigError(findings)
    args = copy.copy(args)
    penalty = loss.reference_policy_kl_penalty
    args.beta = float("ref_logprobs" in algorithm.needs or penalty > 0)  # TRL's only switch
    return algorithm, loss, args


def _sampler_findings(loss: LossConfig, args: GRPOConfig, sampled: bool) -> Iterator[Finding]:
    """Why the sampler's log-probs are missing, or of another distribution than the trainer's."""
    if not loss.use_importance_sampling_correction:
        return
    if not (args.use_vllm or sampled):
        key = "loss_fn.use_importance_sampling_correction"
        reason = "it needs the sampler's log-probs: use_vllm=True or a rollout_func provides them"
        yield Finding(key, f"{reason}. Use one of them, or set this to False.")
    for name, neutral in NEUTRAL.items():
        if args.use_vllm and getattr(args, name) not in neutral:
            reason = "vLLM's log-probs cover only the tokens it keeps, the trainer's cover all"
            yield Finding(f"args.{name}", f"{reason}, so the correction is biased. Remove it.")


def misfits(algorithm: Algorithm, args: GRPOConfig) -> Iterator[Finding]:
    """Each with what to do about it."""
    if missing := sorted(algorithm.needs - GIVEN):
        what = f"{algorithm.name} needs {', '.join(missing)}"
        yield Finding("method", f"{what}, which TRL does not provide")
    for field in fields(GRPOConfig):
        advice = next((v for k, v in REPLACED.items() if field.name.startswith(k)), None)
        if advice and getattr(args, field.name) != field.default:
            reason = "it only applies to TRL's loss, which the method replaces"
            yield Finding(f"args.{field.name}", f"{reason}. Remove it; {advice}")
    if args.use_vllm and getattr(args, CORRECTION):
        reason = "it only applies to TRL's loss, which the method replaces"
        cure = "Set it to False, and set `loss_fn.use_importance_sampling_correction` instead."
        yield Finding(f"args.{CORRECTION}", f"{reason}. {cure}")
    if args.steps_per_generation % args.gradient_accumulation_steps:
        found = args.steps_per_generation
        unit = args.gradient_accumulation_steps
        what = f"{found} must be a multiple of `gradient_accumulation_steps: {unit}`"
        yield Finding("args.steps_per_generation", f"{what}. Change one of them.")

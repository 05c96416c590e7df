"""What slime must be told for our loss to run, and settings of slime's that our loss replaces."""

from argparse import Namespace
from collections.abc import Iterator

from nemo_algos import (
    Algorithm,
    ConfigError,
    Finding,
    LossConfig,
    build,
    sampler_changes,
    validate,
    warn_on_policy,
)

GIVEN = {"ref_logprobs", "entropy", "unit_rewards"}  # of all that methods need
OURS = "nemo_algos.engines.adapters.slime"
ASKED = {
    "loss_type": "custom_loss",
    "custom_loss_function_path": f"{OURS}.method_loss",
    "custom_advantage_function_path": f"{OURS}.advantages",
    "compute_advantages_and_returns": True,
    "rewards_normalization": False,  # the method normalises
}
KL = "set `loss_fn.reference_policy_kl_penalty` and `loss_fn.reference_policy_kl_type`"
CORRECTION = "set `loss_fn.use_importance_sampling_correction`"
REPLACED = {  # slime's default, and what to do
    "advantage_estimator": ("grpo", "the method computes the advantages"),
    "calculate_per_token_loss": (False, "set `method.aggregation`"),
    "custom_pg_loss_reducer_function_path": (None, "set `method.aggregation`"),
    "custom_tis_function_path": (None, CORRECTION),
    "entropy_coef": (0.0, "the loss has no entropy bonus here"),
    "eps_clip": (0.2, "set `method.clip_low` and `method.clip_high`"),
    "eps_clip_c": (None, "set `method.dual_clip`"),
    "eps_clip_high": (0.2, "set `method.clip_high`"),
    "gamma": (1.0, "a reward belongs to a whole response"),
    "get_mismatch_metrics": (False, CORRECTION),
    "kl_coef": (0.0, KL),
    "kl_loss_coef": (0.0, KL),
    "kl_loss_type": ("k1", KL),
    "lambd": (1.0, "a reward belongs to a whole response"),
    "normalize_advantages": (False, "the method computes the advantages"),
    "opsm_delta": (1e-4, "set `method.name: opsm`"),
    "tis_clip": (2.0, CORRECTION),
    "tis_clip_low": (0, CORRECTION),
    "use_opd": (False, "set `method.name: opd`"),
    "use_opsm": (False, "set `method.name: opsm`"),
    "use_rollout_logprobs": (False, "the loss uses the trainer's old log-probs"),
    "use_tis": (False, CORRECTION),
    "use_unbiased_kl": (False, "set `loss_fn.reference_policy_kl_type: unbiased`"),
    "value_clip": (0.2, "no method has a critic"),
}


def judge(args: Namespace) -> tuple[Algorithm, LossConfig]:
    """The blocks `method:` and `loss_fn:` of args. Raises ConfigError with every finding."""
    algorithm = build(getattr(args, "method", None)).with_max_tokens(args.rollout_max_response_len)
    loss = validate(LossConfig, getattr(args, "loss_fn", None) or {}, "loss_fn")
    findings = [*misfits(algorithm, loss, args)]
    if findings:
        raise ConfigError(findings)
    return algorithm, loss


def warn(algorithm: Algorithm, loss: LossConfig, args: Namespace) -> None:
    """What makes the method another one than it seems, once for a run."""
    loss.warn()
    rows = args.rollout_batch_size * args.n_samples_per_prompt
    warn_on_policy(algorithm, rows / args.global_batch_size, "global_batch_size")


def misfits(algorithm: Algorithm, loss: LossConfig, args: Namespace) -> Iterator[Finding]:
    """Each with what to do about it."""
    missing = sorted(algorithm.needs - GIVEN)
    if missing:
        yield Finding(
            "method", f"{algorithm.name} needs {', '.join(missing)}, which slime does not provide"
        )
    if algorithm.terms:
        yield Finding(
            "method.terms",
            "loss terms need counts per optimizer batch, which slime does not provide. Remove "
            "them.",
        )
    asked = ASKED | {"grpo_std_normalization": args.n_samples_per_prompt > 1}  # as slime has it
    if "ref_logprobs" in algorithm.needs or loss.reference_policy_kl_penalty:
        asked["use_kl_loss"] = True  # slime's switch for the reference
    if "entropy" in algorithm.needs:
        asked["use_rollout_entropy"] = True
    for key, value in asked.items():
        if getattr(args, key) != value:
            yield Finding(key, f"must be {value} for {algorithm.name}, got {getattr(args, key)}")
    if loss.use_importance_sampling_correction:
        # slime replays the sets that top-p kept; with top_p 1 it asks the sampler for none
        told = {"top_k": args.rollout_top_k if args.rollout_top_p == 1 else -1}
        for name, reason in sampler_changes(told, args.rollout_temperature).items():
            yield Finding(f"rollout_{name}", reason)
    for key, (stock, advice) in REPLACED.items():
        if getattr(args, key) != stock:
            yield Finding(key, f"the method's loss replaces slime's. Remove it; {advice}")

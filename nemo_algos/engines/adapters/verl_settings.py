"""What a method needs and verl has not; settings of verl's that our loss replaces."""

from collections.abc import Iterator
from importlib.resources import files

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic

from nemo_algos import Algorithm, Finding, LossConfig

GIVEN = {"ref_logprobs", "entropy", "unit_rewards"}  # of all that methods need
KL = "set `loss_fn.reference_policy_kl_penalty` and `loss_fn.reference_policy_kl_type`"
REPLACED = {
    "actor_rollout_ref.actor.clip_ratio": "set `method.clip_low` and `method.clip_high`",
    "actor_rollout_ref.actor.clip_ratio_c": "set `method.dual_clip`",
    "actor_rollout_ref.actor.clip_ratio_high": "set `method.clip_high`",
    "actor_rollout_ref.actor.clip_ratio_low": "set `method.clip_low`",
    "actor_rollout_ref.actor.entropy_coeff": "the loss has no entropy bonus here",
    "actor_rollout_ref.actor.kl_loss_coef": KL,
    "actor_rollout_ref.actor.kl_loss_type": f"{KL} (k3+ is `unbiased` without its ratio)",
    "actor_rollout_ref.actor.loss_agg_mode": "set `method.aggregation`",
    "actor_rollout_ref.actor.loss_scale_factor": "the loss divides by the counts of the batch",
    "actor_rollout_ref.actor.policy_loss": "set `method.name`",
    "actor_rollout_ref.actor.shuffle": "the loss counts sequences of mini-batches cut in order",
    "actor_rollout_ref.actor.tau_neg": "set `method.name: sapo`",
    "actor_rollout_ref.actor.tau_pos": "set `method.name: sapo`",
    "actor_rollout_ref.actor.use_kl_loss": KL,
    "algorithm.adv_estimator": "the method computes the advantages",
    "algorithm.gamma": "a reward belongs to a whole response",
    "algorithm.kl_ctrl": KL,
    "algorithm.kl_penalty": KL,
    "algorithm.lam": "a reward belongs to a whole response",
    "algorithm.norm_adv_by_std_in_grpo": "set `method.advantage_std`",
    "algorithm.rollout_correction": "set `loss_fn.use_importance_sampling_correction`",
    "algorithm.use_kl_in_reward": KL,
    "algorithm.use_pf_ppo": "the loss takes every sequence once",
    "distillation.enabled": "the loss has no teacher here",
}


def misfits(algorithm: Algorithm, loss: LossConfig, config: DictConfig) -> Iterator[Finding]:
    """Each with what to do about it."""
    if missing := sorted(algorithm.needs - GIVEN):
        what = f"{algorithm.name} needs {', '.join(missing)}"
        yield Finding("method", f"{what}, which verl does not provide")
    if algorithm.terms:
        reason = "loss terms need counts per mini-batch, which verl does not provide"
        yield Finding("method.terms", f"{reason}. Remove them.")
    stock = OmegaConf.load(str(files("verl.trainer.config") / "_generated_ppo_trainer.yaml"))
    for key, advice in REPLACED.items():
        if OmegaConf.select(config, key) != OmegaConf.select(stock, key):
            yield Finding(key, f"the method's loss replaces verl's. Remove it; {advice}")
    if OmegaConf.select(config, "rollout_correction"):
        reason = "this adapter does not support it"
        cure = "Remove it; set `loss_fn.use_importance_sampling_correction`."
        yield Finding("rollout_correction", f"{reason}. {cure}")
    if need_critic(config):
        yield Finding("critic.enable", "no method uses a critic. Set it to False.")
    rollout = config.actor_rollout_ref.rollout
    if loss.use_importance_sampling_correction and not rollout.calculate_log_probs:
        reason = "`loss_fn.use_importance_sampling_correction` needs the sampler's log-probs"
        key = "actor_rollout_ref.rollout.calculate_log_probs"
        yield Finding(key, f"{reason}. Set it to True.")

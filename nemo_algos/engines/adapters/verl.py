"""The methods in verl's trainer (0.9): verl generates, rewards and steps; the loss is ours.

VERL_USE_EXTERNAL_MODULES=nemo_algos.engines.adapters.verl registers it; `+method.name=etr` on
verl's command line is a config's block. The driver half sees the whole batch and writes what the
loss needs as fields of it, method_NAME [B,1] or [B,S], which verl cuts and sends like its own.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.utils import need_critic
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils.metric import Metric
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

import nemo_algos as na
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
FIELDS = {
    "old_log_probs": "old_logprobs", "ref_log_prob": "ref_logprobs",
    "rollout_log_probs": "gen_logprobs", "entropy": "entropy",
}  # fmt: skip
SAMPLING = (  # of `rollout`, also such as it may be given with a +
    "do_sample", "frequency_penalty", "min_p", "min_tokens", "presence_penalty",
    "repetition_penalty", "top_k", "top_p",
)  # fmt: skip
PROCESSED = "processed_logprobs"
READ = ["response_mask", "rm_scores", *FIELDS]
COUNTS = ("sequences", "tokens")  # of the optimizer batch
NO_SHARES = ("loss", "clip/positive", "clip/negative", "ratio/p99")  # verl's; of other counts


def misfits(algorithm: Algorithm, loss: LossConfig, config: DictConfig) -> Iterator[Finding]:
    """Each with what to do about it."""
    missing = sorted(algorithm.needs - GIVEN)
    if missing:
        yield Finding(
            "method", f"{algorithm.name} needs {', '.join(missing)}, which verl does not provide"
        )
    if algorithm.terms:
        yield Finding(
            "method.terms",
            "loss terms need counts per mini-batch, which verl does not provide. Remove them.",
        )
    stock = OmegaConf.load(str(files("verl.trainer.config") / "_generated_ppo_trainer.yaml"))
    for key, advice in REPLACED.items():
        if OmegaConf.select(config, key) != OmegaConf.select(stock, key):
            yield Finding(key, f"the method's loss replaces verl's. Remove it; {advice}")
    if OmegaConf.select(config, "rollout_correction"):
        yield Finding(
            "rollout_correction",
            "this adapter does not support it. Remove it; set "
            "`loss_fn.use_importance_sampling_correction`.",
        )
    if need_critic(config):
        yield Finding("critic.enable", "no method uses a critic. Set it to False.")
    if loss.use_importance_sampling_correction:
        yield from _sampler_findings(config.actor_rollout_ref.rollout)


def _sampler_findings(rollout: DictConfig) -> Iterator[Finding]:
    """Why the sampler's log-probs are missing, or of another distribution than the trainer's."""
    path = "actor_rollout_ref.rollout"
    if not rollout.calculate_log_probs:
        yield Finding(
            f"{path}.calculate_log_probs",
            "`loss_fn.use_importance_sampling_correction` needs the sampler's log-probs. Set it "
            "to True.",
        )
    raw = rollout.get("logprobs_mode", PROCESSED) != PROCESSED
    if raw and rollout.temperature != 1:
        yield Finding(
            f"{path}.logprobs_mode",
            f"{rollout.logprobs_mode} are of temperature 1, but the trainer's log-probs of "
            f"{rollout.temperature}, so the correction is biased. Set it to {PROCESSED}.",
        )
    told = {path: {name: rollout.get(name) for name in SAMPLING}}
    for engine, settings in (rollout.get("engine_kwargs") or {}).items():
        own = f"{path}.engine_kwargs.{engine}"
        told[own] = {"logits_processors": (settings or {}).get("logits_processors")}
        key = "override_generation_config"
        told[f"{own}.{key}"] = (settings or {}).get(key) or {}
    for section, settings in told.items():
        for name, reason in na.sampler_changes(settings, rollout.temperature).items():
            yield Finding(f"{section}.{name}", reason)


@register_trainer("nemo_algos")
class MethodTrainer(PPOTrainerSync):
    """verl's synchronous trainer with the blocks `method:` and, where wanted, `loss_fn:`.

    The reference is verl's own, kept where the method or a KL penalty needs it. Raises ConfigError
    with all that is wrong in the blocks, and with the settings of verl's that our loss replaces.
    """

    def __init__(self, config: DictConfig) -> None:
        blocks: Any = OmegaConf.to_container(config, resolve=True)
        limit = config.actor_rollout_ref.rollout.response_length
        self.algorithm = na.build(blocks.get("method")).with_max_tokens(limit)
        self.loss_config = na.validate(na.LossConfig, blocks.get("loss_fn") or {}, "loss_fn")
        findings = [*misfits(self.algorithm, self.loss_config, config)]
        if findings:
            raise na.ConfigError(findings)
        actor = config.actor_rollout_ref.actor
        batches = config.data.train_batch_size / actor.ppo_mini_batch_size
        key = "actor_rollout_ref.actor.ppo_mini_batch_size"
        na.warn_on_policy(self.algorithm, batches * actor.ppo_epochs, key)
        self.loss_config.warn()
        if "ref_logprobs" in self.algorithm.needs or self.loss_config.reference_policy_kl_penalty:
            config.actor_rollout_ref.actor.use_kl_loss = True  # verl's switch for the reference
        config.trainer.v1.trainer_mode = "sync"  # by which verl chooses what else goes with it
        super().__init__(config)

    def _setup(self) -> None:
        super()._setup()
        given = {"algorithm": self.algorithm, "config": self.loss_config}
        self.actor_rollout_wg.set_loss_fn(partial(method_loss, **given))

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        place = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = tq.kv_batch_get(**place, select_fields=["uid", *READ])
        group = _groups(batch, data.pop("uid").tolist())
        nested = data["response_mask"]
        rows = data.to_padded_tensor()
        padding = [t.get("is_padding", False) for t in batch.tags]
        rollouts = _rollouts(rows, group, ~torch.tensor(padding) if any(padding) else None)
        remark = self.algorithm.success_remark(rollouts)
        if remark and self.global_steps == 1:
            warnings.warn(f"step 1: {remark}", stacklevel=2)
        signals = self.algorithm.signals(rollouts)
        metrics.update(signals.metrics)
        known = {**vars(signals), **signals.extras, **self._counts(rollouts.mask)}
        fields = {}
        for k in (*self.algorithm.per_token, *COUNTS):
            fields[f"method_{k}"] = known[k]
        shown = signals.advantages.expand(rollouts.mask.shape)
        fields |= {"advantages": shown, "returns": shown}  # for verl's metrics
        fields = {k: x.to(rollouts.old_logprobs) for k, x in fields.items()}
        wide = {}
        for k, x in fields.items():
            if x.shape[1] > 1:
                wide[k] = response_to_nested(x, nested)
        return tq.kv_batch_put(**place, fields=TensorDict(fields | wide, batch_size=len(batch)))

    def _counts(self, mask: Tensor) -> dict[str, Tensor]:
        """[B,1] each: what the row's optimizer batch has, the k-th piece of every rank's rows."""
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1  # verl has just asked for it
        settings = self.config.actor_rollout_ref
        size = settings.actor.ppo_mini_batch_size * settings.rollout.n // ranks
        pieces = torch.stack([mask.any(1), mask.sum(1)]).view(2, ranks, -1, size)
        sums = pieces.sum((1, 3), keepdim=True).expand_as(pieces).reshape(2, -1, 1)
        return dict(zip(COUNTS, sums, strict=True))


def _groups(batch: Any, uids: list[str]) -> Tensor:
    if len({key.rpartition("_")[0] for key in batch.keys}) < len(batch):
        raise ValueError("several outputs of an agent loop for one response are not supported")
    labels = {uid: label for label, uid in enumerate(dict.fromkeys(uids))}
    return torch.tensor([labels[uid] for uid in uids])


def _rollouts(rows: TensorDict, group: Tensor, kept: Tensor | None = None) -> na.Rollouts:
    mask = rows["response_mask"].bool()
    rewards = rows["rm_scores"].double().sum(1)
    tokens = {}
    for theirs, ours in FIELDS.items():
        if theirs in rows:
            tokens[ours] = rows[theirs]
    return na.Rollouts(group=group, rewards=rewards, mask=mask, sample_mask=kept, **tokens)


def method_loss(
    model_output: dict[str, Tensor],
    data: TensorDict,
    dp_group: Any = None,
    *,
    algorithm: na.Algorithm,
    config: na.LossConfig,
) -> tuple[Tensor, dict[str, Metric]]:
    """In place of verl's `ppo_loss`: a micro-batch's, times the ranks, which average gradients."""
    own = {k: f"method_{k}" for k in (*algorithm.per_token, *COUNTS)}
    rows = data.select(*READ, *own.values(), strict=False).to_padded_tensor()
    columns = {k: rows[v] for k, v in own.items()}
    # a micro-batch lies within an optimizer batch: all its rows have the same counts
    counts = na.Counts(**{k: float(columns.pop(k)[0]) for k in COUNTS})
    bounds = algorithm.constant_bounds or (columns.pop("low"), columns.pop("high"))
    signals = na.Signals(columns.pop("advantages"), *bounds, columns)
    rollouts = _rollouts(rows, torch.arange(len(rows)))  # groups are the driver half's
    entropy = model_output.get("entropy")
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    entropy = entropy if entropy is None else no_padding_2_padding(entropy, data)
    loss = na.policy_loss(algorithm, logprobs, rollouts, signals, counts, config, entropy)
    shares = replace(loss.stats, sums=loss.stats.sums | vars(counts)).summary()
    top = Metric("max", shares.pop("ratio/max", 0.0))
    sums = {}
    for k, v in shares.items():
        if not k.startswith(NO_SHARES):
            sums[k] = v * data["dp_size"]
    return loss.value * data["dp_size"], {"ratio/max": top} | Metric.from_dict(sums, "sum")

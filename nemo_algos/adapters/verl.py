"""The methods in verl's trainer (0.9): verl generates, rewards and steps; the loss is ours.

VERL_USE_EXTERNAL_MODULES=nemo_algos.adapters.verl registers it; `+method.name=etr` on verl's
command line is a config's block. The driver half sees the whole batch and writes what the loss
needs as fields of it, method_NAME [B,1] or [B,S], which verl cuts and sends like its own.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils.metric import Metric
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

import nemo_algos as na
from nemo_algos.adapters.verl_settings import misfits

READ = ["response_mask", "rm_scores", "old_log_probs", "ref_log_prob", "entropy", "uid"]
LOSS_READS = ["response_mask", "old_log_probs", "ref_log_prob", "rollout_log_probs"]
COUNTS = ("sequences", "tokens")  # of the optimizer batch
NO_SHARES = ("loss", "clip/positive", "clip/negative", "ratio/p99")  # verl's; of other counts


@register_trainer("nemo_algos")
class MethodTrainer(PPOTrainerSync):
    """verl's synchronous trainer with the blocks `method:` and, where wanted, `loss_fn:`.

    The reference is verl's own, kept where the method or a KL penalty needs it. Raises ConfigError
    with all that is wrong in the blocks, and with the settings of verl's that our loss replaces.
    """

    def __init__(self, config: DictConfig) -> None:
        blocks: Any = OmegaConf.to_container(config, resolve=True)
        self.algorithm = na.build(blocks.get("method"))
        self.loss_config = na.validate(na.LossConfig, blocks.get("loss_fn") or {}, "loss_fn")
        if findings := [*misfits(self.algorithm, self.loss_config, config)]:
            raise na.ConfigError(findings)
        penalty = self.loss_config.reference_policy_kl_penalty
        if "ref_logprobs" in self.algorithm.needs or penalty > 0:
            config.actor_rollout_ref.actor.use_kl_loss = True  # verl's switch for the reference
        config.trainer.v1.trainer_mode = "sync"  # by which verl chooses what else goes with it
        super().__init__(config)

    def _setup(self) -> None:
        super()._setup()
        given = {"algorithm": self.algorithm, "config": self.loss_config}
        self.actor_rollout_wg.set_loss_fn(partial(method_loss, **given))

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        place = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = tq.kv_batch_get(**place, select_fields=READ)
        nested, uids = data["response_mask"], data.pop("uid").tolist()
        rollouts = _rollouts(batch, uids, data.to_padded_tensor())
        signals = self.algorithm.signals(rollouts)
        metrics.update(signals.metrics)
        known = {**vars(signals), **signals.extras, **self._counts(rollouts.mask)}
        fields = {f"method_{k}": known[k] for k in (*self.algorithm.per_token, *COUNTS)}
        shown = signals.advantages.expand(rollouts.mask.shape)
        fields |= {"advantages": shown, "returns": shown}  # for verl's metrics
        fields = {k: x.to(rollouts.old_logprobs) for k, x in fields.items()}
        wide = {k: response_to_nested(x, nested) for k, x in fields.items() if x.shape[1] > 1}
        return tq.kv_batch_put(**place, fields=TensorDict(fields | wide, batch_size=len(batch)))

    def _counts(self, mask: Tensor) -> dict[str, Tensor]:
        """[B,1] each: what the row's optimizer batch has, the k-th piece of every rank's rows."""
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1  # verl has just asked for it
        settings = self.config.actor_rollout_ref
        size = settings.actor.ppo_mini_batch_size * settings.rollout.n // ranks
        pieces = torch.stack([mask.any(1), mask.sum(1)]).view(2, ranks, -1, size)
        sums = pieces.sum((1, 3), keepdim=True).expand_as(pieces).reshape(2, -1, 1)
        return dict(zip(COUNTS, sums, strict=True))


def _rollouts(batch: Any, uids: list[str], data: TensorDict) -> na.Rollouts:
    if len({key.rpartition("_")[0] for key in batch.keys}) < len(batch):
        reason = "an agent loop gave several outputs for one response, which a group cannot weigh"
        raise ValueError(f"{reason}: let it give one")
    labels = {uid: label for label, uid in enumerate(dict.fromkeys(uids))}
    padding = torch.tensor([tag.get("is_padding", False) for tag in batch.tags])
    return na.Rollouts(
        group=[labels[uid] for uid in uids],
        rewards=data["rm_scores"].double().sum(1),
        mask=data["response_mask"].bool(),
        old_logprobs=data["old_log_probs"],
        ref_logprobs=data.get("ref_log_prob"),
        entropy=data.get("entropy"),
        sample_mask=~padding if padding.any() else None,
    )


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
    rows = data.select(*LOSS_READS, *own.values(), strict=False).to_padded_tensor()
    columns = {k: rows[v] for k, v in own.items()}
    counts = na.Counts(*(float(columns.pop(k)[0]) for k in COUNTS))
    bounds = algorithm.constant_bounds or (columns.pop("low"), columns.pop("high"))
    signals = na.Signals(columns.pop("advantages"), *bounds, columns)
    nothing = torch.zeros(len(rows), dtype=torch.long)  # groups and rewards: the driver half's
    rollouts = na.Rollouts(
        group=nothing,
        rewards=nothing,
        mask=rows["response_mask"].bool(),
        old_logprobs=rows["old_log_probs"],
        ref_logprobs=rows.get("ref_log_prob"),
        gen_logprobs=rows.get("rollout_log_probs"),
    )
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    entropy = model_output.get("entropy")
    entropy = entropy if entropy is None else no_padding_2_padding(entropy, data)
    loss = na.policy_loss(algorithm, logprobs, rollouts, signals, counts, config, entropy)
    shares = replace(loss.stats, sums=loss.stats.sums | vars(counts)).summary()
    shown = {k: v * data["dp_size"] for k, v in shares.items() if not k.startswith(NO_SHARES)}
    metrics = {k: Metric("sum", v) for k, v in shown.items() if k != "ratio/max"}
    top = {"ratio/max": Metric("max", shares["ratio/max"])} if "ratio/max" in shares else {}
    return loss.value * data["dp_size"], metrics | top

"""verl's own losses and advantages (verl 0.9.1, `verl.trainer.ppo.core_algos`) in our terms.

Every function calls verl's registered function with a real `ActorConfig`; nothing is computed
here. What a comparison has to set, because verl differs:

- Off the mask: values must be finite (verl multiplies by the mask in places).
- Empty rows: `gmpo` averages over all B rows, so verl's value times B / (rows that are not empty)
  is ours. The other sequence means drop empty rows, as ours do. An all-empty batch is 0 / 0 = NaN
  in every one of them but `gmpo`.
- Log-ratio clamp: ppo and cispo clamp l to +-20, as ours; gspo clamps only log s, at +10; gmpo and
  gpg clamp nothing. Compare gspo and gmpo with |l| <= 20 and mean l <= 10.
- Defaults: verl aggregates by token (gspo's function too, when the actor's config decides; gmpo
  ignores the mode) and has the dual clip c = 3. Here the mode is a parameter, the dual clip is off.
- Advantages: sample std + 1e-6, as ours, but A = R in a group of one, and a flat group is only as
  flat as its mean is exact (ours is exactly 0).
- `advantages_gpg` multiplies R - mean by B / (rewards that are not 0), whatever alpha it is given,
  in float32; divide by it (agreement is then 1e-7, not 1e-15).
- `gmpo` (and the sequence mean) divide by |o| + 1e-8: agreement is 1e-8 at best.
- k3 KL: d is clamped to +-20, as ours, and then the value to +-10 (ours is not): keep d below 2.5.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig, PolicyLossConfig

Aggregation = Literal["token", "sequence"]
MODES = {"token": "token-mean", "sequence": "seq-mean-token-mean"}
NO_DUAL_CLIP = 1e30  # above exp(20), the largest ratio; inf would make A = 0 a NaN


def actor(**settings: Any) -> ActorConfig:
    """An actor's config with verl's own defaults but for these."""
    return ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **settings)


def loss(
    name: str,
    old_logprobs: Tensor,
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    aggregation: Aggregation = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weights: Tensor | None = None,
    batch: dict[str, int] | None = None,
    **policy_loss: Any,
) -> Tensor:
    """The registered loss `name`: "vanilla" is our grpo, "geo_mean" our gmpo.

    - dual_clip (c > 1) bounds the loss at c |A| for A < 0; of dppo_tv and dppo_kl it bounds the
      ratio, and clip_low and clip_high bound the divergence. geo_mean's bound the *log*-ratio.
    - weights: of the sampler's correction. batch: counts of the whole batch, where the mask is a
      part's. policy_loss: verl's section of that name.
    """
    config = actor(
        clip_ratio=clip_low,
        clip_ratio_low=clip_low,
        clip_ratio_high=clip_high,
        clip_ratio_c=NO_DUAL_CLIP if dual_clip is None else dual_clip,
        policy_loss=PolicyLossConfig(loss_mode=name, **policy_loss),
    )
    if batch is not None:
        config.global_batch_info.update(dp_size=1, **batch)
    per_token = advantages[:, None] if advantages.dim() == 1 else advantages
    value, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=old_logprobs,
        log_prob=logprobs,
        advantages=per_token.expand_as(logprobs),
        response_mask=mask.bool(),  # as verl's ppo_loss passes it
        loss_agg_mode=MODES[aggregation],
        config=config,
        rollout_is_weights=weights,
    )
    return value


def own_defaults(
    old_logprobs: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor
) -> Tensor:
    """What verl trains with where nothing is set: its actor's own config."""
    config = actor()
    value, _ = core_algos.get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_logprobs, logprobs, advantages, mask.bool(), config.loss_agg_mode, config
    )
    return value


def kl(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    aggregation: Aggregation = "token",
    kind: str = "low_var_kl",
    batch: dict[str, int] | None = None,
) -> Tensor:
    """The KL term that verl's `ppo_loss` adds, times kl_loss_coef ("low_var_kl", its default).

    batch: counts of the whole batch, where the mask is a part's.
    """
    per_token = core_algos.kl_penalty(logprobs, ref_logprobs, kind)
    return core_algos.agg_loss(per_token, mask.bool(), MODES[aggregation], **(batch or {}))


def _token_level(rewards: Tensor, mask: Tensor) -> Tensor:
    """Outcome rewards as verl wants them; it sums every position, on the mask or off it."""
    scores = torch.zeros(mask.shape, dtype=rewards.dtype)
    scores[:, -1] = rewards
    return scores


def advantages_grpo(
    rewards: Tensor,
    mask: Tensor,
    group: Sequence[int],
    *,
    epsilon: float = 1e-6,
    normalise: bool = True,
) -> Tensor:
    """`compute_grpo_outcome_advantage`, [B, S], 0 off the mask; `normalise=False`: R - mean."""
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        _token_level(rewards, mask), mask.bool(), np.asarray(group), epsilon, normalise
    )
    return advantages


def advantages(
    name: str, rewards: Tensor, mask: Tensor, group: Sequence[int], **algorithm: Any
) -> Tensor:
    """The registered estimator `name`, [B, S]; the reward stands on a response's last token.

    Of an empty response on the last position: most sum every one, and reinforce_plus_plus none.
    """
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    last[:, -1] |= ~mask.any(1)
    values, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=last * rewards[:, None],
        response_mask=mask.double(),  # of integers it makes float32 means
        index=np.asarray(group),
        config=AlgoConfig(**algorithm),
    )
    return values


def advantages_gpg(rewards: Tensor, mask: Tensor, group: Sequence[int]) -> Tensor:
    """`compute_gpg_outcome_advantage`, [B, S]."""
    advantages, _ = core_algos.compute_gpg_outcome_advantage(
        _token_level(rewards, mask), mask.bool(), np.asarray(group)
    )
    return advantages

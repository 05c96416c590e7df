"""Functions for conformance.py: other frameworks on our cases.

Each calls the framework's own loss, set as near to the method as its options allow, and its own
advantages where they can be had without a model. What it gives to a worker is what its trainer
gives: the counts of the whole batch, or the number of micro-batches.
"""

# pyright: reportMissingImports=false

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import trl_peer
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig


class Batch(NamedTuple):
    """Of a worker, or whole; A [B,S] is 0 off the mask."""

    old: Tensor
    logprobs: Tensor
    mask: Tensor
    A: Tensor
    params: dict[str, Any]
    counts: dict[str, int]


Loss = Callable[[Batch], Tensor]
Advantages = Callable[[str, Tensor, list[int], Tensor], Tensor]


def conforming(losses: dict[str, Loss], advantages: Advantages | None = None) -> Callable[..., Any]:
    """The function of a framework that has these losses, by our methods' names."""

    def function(method: str, params: Any, inputs: Any, signals: Any, counts: Any) -> dict:
        if method not in losses:
            raise NotImplementedError("has no such loss")
        of = {k: torch.from_numpy(v) for k, v in inputs.items()}
        A, own = torch.from_numpy(signals["advantages"])[:, None], {}
        if advantages and "rewards" in inputs:
            A = advantages(method, of["rewards"], of["group"].tolist(), of["mask"])
            own = {"advantages": A}
        leaf = of["logprobs"].requires_grad_()
        A = A.expand_as(leaf) * of["mask"]
        loss = losses[method](Batch(of["old_logprobs"], leaf, of["mask"], A, params, counts))
        loss.backward()
        return {"loss": loss.item(), "grad": leaf.grad, **own}

    return function


# ---- verl


def _verl(b: Batch, *, name: str, low: str = "clip_low", high: str = "clip_high") -> Tensor:
    mode = {"gpg": "token-mean", "cispo": "token-mean"}.get(name, "seq-mean-token-mean")
    low, high = b.params.get(low), b.params.get(high)
    clip = (
        {} if low is None else {"clip_ratio": low, "clip_ratio_low": low, "clip_ratio_high": high}
    )
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_c=1e30, **clip
    )
    sizes = {"batch_num_tokens": b.counts["tokens"], "global_batch_size": b.counts["rows"]}
    config.global_batch_info.update(dp_size=1, **sizes)
    compute = core_algos.get_policy_loss_fn(name)
    return compute(b.old, b.logprobs, b.A, b.mask, mode, config)[0]


def _verl_advantages(method: str, rewards: Tensor, group: list[int], mask: Tensor) -> Tensor:
    scores, kind = torch.zeros(mask.shape, dtype=rewards.dtype), np.asarray(group)
    scores[:, -1] = rewards
    if method == "gpg":
        return core_algos.compute_gpg_outcome_advantage(scores, mask, kind)[0]
    return core_algos.compute_grpo_outcome_advantage(scores, mask, kind)[0]


verl = conforming(
    {
        "grpo": partial(_verl, name="vanilla"),
        "gspo": partial(_verl, name="gspo"),
        "gmpo": partial(_verl, name="geo_mean", low="log_clip_low", high="log_clip_high"),
        "gpg": partial(_verl, name="gpg"),
        "cispo": partial(_verl, name="cispo"),
    },
    _verl_advantages,
)

# ---- TRL, whose advantages are made within its generation


def _trl(b: Batch, *, loss_type: str, level: str = "token") -> Tensor:
    high = b.params["clip_high"] + (loss_type == "cispo")
    config = trl_peer._config(
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon=b.params["clip_low"],
        epsilon_high=high,
        gradient_accumulation_steps=b.counts["pieces"],
        beta=0.0,
    )
    trainer = trl_peer.BareTrainer(config, b.logprobs)
    trainer.current_gradient_accumulation_steps = b.counts["pieces"]
    per_sequence = (b.A * b.mask).sum(1) / b.mask.sum(1).clamp(min=1)
    batch = trl_peer._batch(b.old, per_sequence, b.mask, None)
    batch["num_items_in_batch"] = torch.tensor(b.counts["tokens"])
    return trainer._compute_loss(trainer.model, batch)


trl = conforming(
    {
        "grpo": partial(_trl, loss_type="grpo"),
        "gspo": partial(_trl, loss_type="grpo", level="sequence"),
        "cispo": partial(_trl, loss_type="cispo"),
    }
)

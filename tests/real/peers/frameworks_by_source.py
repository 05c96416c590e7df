"""As frameworks.py, for those whose functions are taken out of their source (sources.py)."""

from collections import defaultdict
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch
from frameworks import Batch, conforming
from sources import take
from torch import Tensor, nn

# ---- ms-swift


SWIFT = {"torch": torch, "Dict": dict, "List": list, "Optional": Optional, "Tuple": tuple}
SWIFT |= {"nanmin": torch.min, "nanmax": torch.max, "WINDOW_NORMALIZED_LOSS_TYPES": ["cispo"]}
SWIFT_TRAINER = "rlhf_trainers/grpo_trainer.py"


@cache
def swift_function(file: str, name: str) -> Any:
    """The function or method `name` of a file of ms-swift, by itself."""
    return take(f"swift/{file}", name, dict(SWIFT))[name]


class Off(SimpleNamespace):
    """A trainer, or a batch: what it has not been told is off."""

    def __getattr__(self, name: str) -> None:
        return None


def _swift(b: Batch, *, loss_type: str, level: str = "token") -> Tensor:
    alike = Off(num_processes=1, gather_for_metrics=lambda x: x[None])
    trainer = Off(
        model=SimpleNamespace(training=True),
        args=Off(top_entropy_quantile=1.0),
        accelerator=alike,
        _get_per_token_logps_and_entropies=lambda *_, **__: (b.logprobs, None),
        _undo_gradient_accumulation_scaling=lambda loss: loss * b.counts["pieces"],
        importance_sampling_level=level,
        loss_type=loss_type,
        beta=b.coef,
        sdar_loss_coef=0.0,
        epsilon_low=b.params["clip_low"],
        epsilon_high=b.params["clip_high"] + (loss_type == "cispo"),
    )
    batch = Off(
        completion_mask=b.mask,
        advantages=b.A,
        old_per_token_logps=b.old,
        num_items_in_batch=b.counts["tokens"],
        ref_per_token_logps=b.ref,
    )
    compute = swift_function(SWIFT_TRAINER, "_compute_loss_and_metrics")
    loss = compute(trainer, trainer.model, {}, batch)[0]
    return loss / b.counts["pieces"]  # as Trainer.training_step


def swift_advantages(name: str, rewards: Tensor, group: list[int], scale: str = "group") -> Tensor:
    """[B]: advantage_estimator `name`, scale_rewards `scale`."""
    prompts, requests = [str(g) for g in group], [str(i) for i in range(len(group))]
    compute = swift_function("rl_core/advantage.py", "compute_advantages_dynamic")
    torch.set_default_dtype(torch.float64)  # of its own temporaries
    try:
        return compute(rewards[:, None], torch.ones(1), prompts, requests, name, scale)[0]
    finally:
        torch.set_default_dtype(torch.float32)


def _swift_advantages(method: str, rewards: Tensor, group: list[int], mask: Tensor) -> Tensor:
    return swift_advantages("grpo", rewards, group)[:, None]


swift = conforming(
    {
        "grpo": partial(_swift, loss_type="grpo"),
        "gspo": partial(_swift, loss_type="grpo", level="sequence"),
        "cispo": partial(_swift, loss_type="cispo"),
    },
    _swift_advantages,
    kinds=("k3",),
)

# ---- OpenRLHF, whose advantages are made beside its generation


@cache
def openrlhf_source() -> dict[str, Any]:
    names = {"torch": torch, "nn": nn, "KL_IS_WEIGHT_CLIP": 10.0}
    take("openrlhf/models/utils.py", "masked_mean compute_approx_kl", names)
    return take("openrlhf/models/loss.py", "aggregate_loss PolicyLoss", names)


def _openrlhf(b: Batch, *, kind: str) -> Tensor:
    low, high = b.params["clip_low"], b.params["clip_high"]
    options = {"policy_loss_type": kind, "token_level_loss": False}
    loss = openrlhf_source()["PolicyLoss"](low, high, **options)
    sizes = {"batch_num_tokens": b.counts["tokens"], "global_batch_size": b.counts["sequences"]}
    value = loss(b.logprobs, b.old, b.A, b.mask, **sizes)[0]
    if b.ref is None:
        return value
    kl = openrlhf_source()["compute_approx_kl"](b.logprobs, b.ref, kl_estimator=b.kind)
    return value + b.coef * openrlhf_source()["aggregate_loss"](kl, b.mask, **sizes)  # by token


openrlhf = conforming(
    {"grpo": partial(_openrlhf, kind="ppo"), "gspo": partial(_openrlhf, kind="gspo")},
    kinds=("k1", "k2", "k3"),
)

# ---- SkyRL: its driver scales advantages, its losses are sums


@cache
def skyrl_source() -> dict[str, Any]:
    names = {"torch": torch, "defaultdict": defaultdict}
    folder = "skyrl/backends/skyrl_train/utils"
    losses = "ppo_policy_loss gspo_policy_loss compute_policy_loss_cispo reduce_loss"
    driver = "apply_loss_reduction_to_advantages_minibatch compute_grpo_outcome_advantage"
    driver += " compute_approx_kl"
    take(f"{folder}/torch_utils.py", "masked_mean safe_exp_delta", names)
    take(f"{folder}/off_policy_correction_utils.py", "apply_off_policy_correction", names)
    return take(f"{folder}/ppo_utils.py", f"{losses} {driver}", names)


def _skyrl(b: Batch, *, name: str, mean: str) -> Tensor:
    """A driver's own scaling, of a whole batch; for a worker the same from the counts."""
    low, high, count = b.params["clip_low"], b.params["clip_high"], b.counts
    source, whole = skyrl_source(), len(b.mask) == count["rows"]
    scale = source["apply_loss_reduction_to_advantages_minibatch"]
    A = scale(b.A, b.mask, mean, 1, 0)
    if not whole:
        share = len(b.mask) / count["rows"] if mean == "sequence_mean" else None
        A = A * (share or b.mask.sum().clamp(min=1) / count["tokens"])
    config = SimpleNamespace(
        policy_loss_type="regular",
        loss_reduction=mean,
        eps_clip_low=low,
        eps_clip_high=high,
        off_policy_correction=None,
        cispo=SimpleNamespace(cispo_eps_clip_low=low, cispo_eps_clip_high=high),
    )
    loss = source[name](b.logprobs, b.old, A, config, b.mask)[0]
    if b.ref is None:
        return loss
    kl = source["compute_approx_kl"](b.logprobs, b.ref, b.mask, b.kind)  # as its worker adds it
    mean_kl = source["masked_mean"](kl, b.mask, dim=-1).mean()
    return loss + b.coef * mean_kl * len(b.mask) / count["rows"]


def _skyrl_advantages(method: str, rewards: Tensor, group: list[int], mask: Tensor) -> Tensor:
    scores = torch.zeros(mask.shape, dtype=rewards.dtype)
    scores[:, -1] = rewards
    compute = skyrl_source()["compute_grpo_outcome_advantage"]
    return compute(scores, mask, np.asarray(group))[0]


skyrl = conforming(
    {
        "grpo": partial(_skyrl, name="ppo_policy_loss", mean="sequence_mean"),
        "gspo": partial(_skyrl, name="gspo_policy_loss", mean="sequence_mean"),
        "cispo": partial(_skyrl, name="compute_policy_loss_cispo", mean="token_mean"),
    },
    _skyrl_advantages,
    kinds=("k1", "k2", "k3"),
)

# ---- AReaL, of which every mean is one over tokens, weighted by the tokens of a micro-batch


@cache
def areal_source() -> dict[str, Any]:
    names = "ppo_actor_loss_fn _compute_sequence_level_ratio_and_advantages"
    return take("areal/utils/functional/functional.py", names, {"torch": torch})


def _areal(b: Batch, *, level: str) -> Tensor:
    bounds = {"eps_clip": b.params["clip_low"], "eps_clip_higher": b.params["clip_high"]}
    given = (b.logprobs, b.old, b.old, b.A)
    loss = areal_source()["ppo_actor_loss_fn"]
    value = loss(*given, loss_mask=b.mask, importance_sampling_level=level, **bounds)[0]
    return value * b.mask.sum() / b.counts["tokens"]


areal = conforming(
    {"grpo": partial(_areal, level="token"), "gspo": partial(_areal, level="sequence")}
)

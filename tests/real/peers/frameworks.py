"""Functions for conformance.py: other frameworks on our cases.

Each calls the framework's own loss, set as near to the method as its options allow, and its own
advantages where they can be had without a model. What it gives to a worker is what its trainer
gives: the counts of the whole batch, or the number of micro-batches.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import Any, NamedTuple

import torch
import trl_peer
import verl_peer
from torch import Tensor


class Batch(NamedTuple):
    """Of a worker, or whole; A [B,S] is 0 off the mask."""

    old: Tensor
    logprobs: Tensor
    mask: Tensor
    A: Tensor
    params: dict[str, Any]
    counts: dict[str, int]
    ref: Tensor | None = None
    kind: str = ""  # of the KL penalty to ref; empty where the loss has none
    coef: float = 0.0


Loss = Callable[[Batch], Tensor]
Advantages = Callable[[str, Tensor, list[int], Tensor], Tensor]


def conforming(
    losses: dict[str, Loss], advantages: Advantages | None = None, kinds: Container[str] = ()
) -> Callable[..., Any]:
    """The function of a framework that has these losses, by our methods' names.

    kinds: the estimators of a KL penalty that its losses have.
    """

    def function(method: str, params: Any, inputs: Any, signals: Any, counts: Any) -> dict:
        if method not in losses:
            raise NotImplementedError("has no such loss")
        if "kl_coef" in params and params["kl_type"] not in kinds:
            raise NotImplementedError("its loss has no such KL penalty")
        of = {k: torch.from_numpy(v) for k, v in inputs.items()}
        A, own = torch.from_numpy(signals["advantages"])[:, None], {}
        if advantages and "rewards" in inputs:
            A = advantages(method, of["rewards"], of["group"].tolist(), of["mask"])
            own = {"advantages": A}
        leaf = of["logprobs"].requires_grad_()
        A = A.expand_as(leaf) * of["mask"]
        batch = Batch(of["old_logprobs"], leaf, of["mask"], A, params, counts)
        if "kl_coef" in params:
            penalty = {"kind": params["kl_type"], "coef": params["kl_coef"]}
            batch = batch._replace(ref=of["ref_logprobs"], **penalty)
        loss = losses[method](batch)
        loss.backward()
        return {"loss": loss.item(), "grad": leaf.grad, **own}

    return function


# ---- verl


def _verl(b: Batch, *, name: str, low: str = "clip_low", high: str = "clip_high") -> Tensor:
    bounds = {"clip_low": b.params.get(low, 0.2), "clip_high": b.params.get(high, 0.2)}
    mean = "token" if name in ("gpg", "cispo") else "sequence"
    sizes = {"batch_num_tokens": b.counts["tokens"], "global_batch_size": b.counts["rows"]}
    given = (b.old, b.logprobs, b.A, b.mask)
    loss = verl_peer.loss(name, *given, aggregation=mean, batch=sizes, **bounds)
    if b.ref is None:
        return loss
    kl = verl_peer.kl(b.logprobs, b.ref, b.mask, aggregation=mean, kind=b.kind, batch=sizes)
    return loss + b.coef * kl


def _verl_advantages(method: str, rewards: Tensor, group: list[int], mask: Tensor) -> Tensor:
    compute = verl_peer.advantages_gpg if method == "gpg" else verl_peer.advantages_grpo
    return compute(rewards, mask, group)


verl = conforming(
    {
        "grpo": partial(_verl, name="vanilla"),
        "gspo": partial(_verl, name="gspo"),
        "gmpo": partial(_verl, name="geo_mean", low="log_clip_low", high="log_clip_high"),
        "gpg": partial(_verl, name="gpg"),
        "cispo": partial(_verl, name="cispo"),
    },
    _verl_advantages,
    kinds=("k1", "k2", "k3"),
)

# ---- TRL, whose advantages are made within its generation


def _trl(b: Batch, *, loss_type: str, level: str = "token") -> Tensor:
    return trl_peer.loss(
        b.old,
        b.logprobs,
        (b.A * b.mask).sum(1) / b.mask.sum(1).clamp(min=1),
        b.mask,
        tokens=b.counts["tokens"],
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon=b.params["clip_low"],
        epsilon_high=b.params["clip_high"] + (loss_type == "cispo"),
        gradient_accumulation_steps=b.counts["pieces"],
        ref_logprobs=b.ref,
        beta=b.coef,
        use_bias_correction_kl=b.kind == "unbiased",
    )


trl = conforming(
    {
        "grpo": partial(_trl, loss_type="grpo"),
        "gspo": partial(_trl, loss_type="grpo", level="sequence"),
        "cispo": partial(_trl, loss_type="cispo"),
    },
    kinds=("k3", "unbiased"),
)

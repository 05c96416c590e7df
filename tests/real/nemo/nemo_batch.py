"""Rollouts as NeMo-RL's batches, and the loss of one.

They have one more position in front: its losses use [:, 1:].
"""

from __future__ import annotations

from typing import Any

import batches
import torch
import torch.nn.functional as F
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from nemo_rl.algorithms.utils import get_gdpo_reward_component_keys
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch import Tensor

from nemo_algos.algorithms import methods
from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.nemo.estimator import Estimator, Forward, tensor_of
from nemo_algos.engines.nemo.loss import AlgorithmLoss

NAMED = bool(get_gdpo_reward_component_keys({"reward/a": 0}))  # not in v0.7.0
# with nothing but a batch; the others: test_extensions.py
OTHERS = {"memory", "reward_parts", "turn_rewards"}
METHODS = {k: m for k, m in methods.METHODS.items() if not m.needs & OTHERS}


def shifted(x: Tensor) -> Tensor:
    """[B,S] -> [B,S+1]."""
    return F.pad(x, (1, 0))


def components(rollouts: Rollouts, by_turn: bool = False) -> dict[str, Tensor]:
    """The parts of the reward under the keys that both versions know: `reward1`, `reward/reward1`.

    In the order of their names; by_turn: instead, what each turn has earned.
    """
    if by_turn and rollouts.turn_rewards is not None:
        columns = enumerate(rollouts.turn_rewards.unbind(1), start=1)
        return {f"reward/turn_{k}": earned for k, earned in columns}
    parts = enumerate(rollouts.reward_parts or {}, start=1)
    key = "reward/reward{}" if NAMED else "reward{}"
    return {key.format(i): (rollouts.reward_parts or {})[name] for i, name in parts}


def advantages_of(estimator: Estimator, rollouts: Rollouts, **changed: Any) -> Tensor:
    """What the estimator makes of rollouts; changed: other arguments of its compute_advantage."""
    given = {
        "prompt_ids": rollouts.group[:, None],
        "rewards": rollouts.rewards,
        "mask": rollouts.mask.float(),
        "repeated_batch": components(rollouts),
        "logprobs_policy": rollouts.old_logprobs,
        "logprobs_reference": rollouts.ref_logprobs,
        "generation_logprobs": rollouts.gen_logprobs,
    }
    return tensor_of(estimator.compute_advantage(**given | changed))


def batch(
    algorithm: Algorithm, rollouts: Rollouts, batch_size: int | None = None
) -> BatchedDataDict[Any]:
    """What NeMo-RL's trainer would hand to `policy.train`, signals included.

    Off the mask there are zeros.
    """

    def clean(x: Tensor | None) -> Tensor:
        return shifted(
            torch.zeros_like(rollouts.old_logprobs) if x is None else x.where(rollouts.mask, 0.0)
        )

    mask = shifted(rollouts.mask)
    old, ref, gen = (
        clean(x) for x in (rollouts.old_logprobs, rollouts.ref_logprobs, rollouts.gen_logprobs)
    )
    estimator = Estimator(algorithm, batch_size=batch_size)
    estimator.forward = Forward(None if rollouts.entropy is None else clean(rollouts.entropy))
    advantages = advantages_of(
        estimator,
        rollouts,
        mask=mask.float(),
        repeated_batch=components(rollouts, "turn_rewards" in algorithm.needs),
        logprobs_policy=old,
        logprobs_reference=ref,
        generation_logprobs=gen,
    )
    sample_mask = (rollouts.lengths > 0).to(old.dtype)
    bypass = algorithm.correction.bypass_mode  # as the policy's proxy does
    return BatchedDataDict(
        {
            "input_ids": torch.zeros(mask.shape, dtype=torch.long),
            "input_lengths": torch.full((len(mask),), mask.shape[1]),
            "advantages": advantages,
            "prev_logprobs": gen if bypass else old,
            "generation_logprobs": gen,
            "reference_policy_logprobs": ref,
            "token_mask": mask.to(old.dtype),
            # NeMo-RL counts every sequence that is not masked; ours is one with tokens
            "sample_mask": sample_mask,
            **estimator.masks_for(mask.to(old.dtype), sample_mask),
            **estimator.signals_for(advantages),
        }
    )


def config(**values: Any) -> ClippedPGLossConfig:
    """NeMo-RL's loss_fn section, KL off unless asked for."""
    return ClippedPGLossConfig(**{"reference_policy_kl_penalty": 0.0, **values})


def counts(data: BatchedDataDict[Any]) -> tuple[Tensor, Tensor]:
    """global_valid_seqs and global_valid_toks as NeMo-RL computes them."""
    tokens = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
    return data["sample_mask"].sum(), tokens.sum()


def loss_and_gradient(
    loss: AlgorithmLoss, logprobs: Tensor, data: BatchedDataDict[Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """logprobs [B,S] -> the loss, its gradient [B,S], the metrics."""
    leaf = logprobs.detach().where(data["token_mask"][:, 1:].bool(), 0.0).requires_grad_()
    value, metrics = loss(leaf, data, *counts(data))
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient, metrics


def through(
    algorithm: Algorithm, rollouts: Rollouts, logprobs: Tensor, **values: Any
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The method's loss in NeMo-RL with these keys of loss_fn, its gradient and metrics."""
    loss = AlgorithmLoss(config(**values), algorithm)
    return loss_and_gradient(loss, logprobs, batch(algorithm, rollouts))


def assert_embedded(
    method: Any,
    batch: batches.Batch,
    correction: dict[str, Any] | None = None,
    named: Rollouts | None = None,
    theirs: dict[str, Any] | None = None,
    **loss_fn: Any,
) -> tuple[Tensor, Tensor, dict[str, Any], dict[str, float]]:
    """The method's loss and gradient in NeMo-RL are the embedded engine's; both and both's metrics.

    named: the rollouts with NeMo-RL's names of the reward's parts; theirs: its keys of loss_fn,
    where they are others.
    """
    algorithm = build(method, correction)
    value, gradient, metrics = through(algorithm, *batch, **(theirs or loss_fn))
    corrected, _ = algorithm.correct(batch.rollouts if named is None else named)
    config, signals = LossConfig(**loss_fn), algorithm.signals(corrected, {})
    leaf = batch.logprobs.clone().requires_grad_()
    counts = Counts.of(corrected.mask)
    want = policy_loss(algorithm, leaf, corrected, signals, counts, config)
    want.value.backward()
    torch.testing.assert_close(value, want.value.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-5, atol=1e-7)
    assert gradient.any()
    return value, gradient, metrics, want.stats.summary()

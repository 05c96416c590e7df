"""A method's driver half behind NeMo-RL's `compute_advantage`, and the hand-over of its signals to
the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from nemo_algos.methods.algorithm import Algorithm, Signals
from nemo_algos.nemo import versions
from nemo_algos.nemo.loss import PER_POSITION, PER_ROW
from nemo_algos.rollouts import Rollouts

# grpo.adv_estimator.name: NeMo-RL's own factory refuses it, so an unpatched path cannot run GRPO
NAME = "nemo_algos"
FACTORY = "_create_advantage_estimator"
CREATORS = (
    "nemo_rl.algorithms.grpo",
    "nemo_rl.algorithms.grpo_sync",
    "nemo_rl.algorithms.single_controller_utils.setup",
)


class Estimator:
    """compute_advantage of NeMo-RL's protocol; keeps the signals until `signals_for` takes them.

    entropy [B,S]: of the previous log-probs' forward, put here by the policy's proxy.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.entropy: Tensor | None = None
        self.last_metrics: dict[str, float] = {}
        self._kept: tuple[Tensor, Signals] | None = None

    def compute_advantage(
        self,
        prompt_ids: Tensor,
        rewards: Tensor,
        mask: Tensor,
        repeated_batch: Any = None,
        logprobs_policy: Tensor | None = None,
        logprobs_reference: Tensor | None = None,
        **unused: Any,
    ) -> Tensor:
        """prompt_ids [B,P], equal rows = one group; rewards [B]; mask, log-probs [B,S] ->
        advantages [B,S] float32."""
        if logprobs_policy is None:
            raise ValueError("prev_logprobs were skipped: set loss_fn.force_on_policy_ratio: false")
        entropy, self.entropy = self.entropy, None
        rollouts = Rollouts(
            group=row_hash(prompt_ids),
            rewards=rewards,
            mask=mask.bool(),
            old_logprobs=logprobs_policy,
            ref_logprobs=logprobs_reference,
            entropy=entropy,
        )
        signals = self.algorithm.signals(rollouts)
        advantages = signals.columns(rollouts.mask, torch.float32).advantages
        advantages = advantages.expand(mask.shape).contiguous()
        self.last_metrics = dict(signals.metrics)
        self._kept = (advantages, signals)
        return advantages

    def signals_for(self, advantages: Tensor) -> dict[str, Tensor]:
        """The signals of a training batch by key, float32 [B] or [B,S]; once for each
        compute_advantage.

        advantages [B,S]: the training batch's. Raises ValueError where they are not the ones that
        were computed.
        """
        if self._kept is None:
            raise ValueError(
                "training was asked for twice on one set of advantages, or before "
                "compute_advantage: "
                "the method's signals belong to one rollout batch"
            )
        (computed, signals), self._kept = self._kept, None
        if not torch.equal(advantages, computed):
            raise ValueError(
                "the advantages were reordered or changed between compute_advantage and train: "
                "switch off "
                "grpo.advantage_clip_low/high and the message-level advantage penalties"
            )
        return _batch_fields(signals, len(computed))

    def field_names(self) -> tuple[str, ...]:
        """The keys of `signals_for`."""
        two, zeros = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1)
        example = Rollouts(two[:, 0].long(), zeros[:, 0], two, zeros, zeros, zeros)
        return tuple(_batch_fields(self.algorithm.signals(example), 2))


def _batch_fields(signals: Signals, rows: int) -> dict[str, Tensor]:
    fields = {}
    for name, value in {"low": signals.low, "high": signals.high, **signals.extras}.items():
        tensor = torch.as_tensor(value, dtype=torch.float32)
        if tensor.dim() == 2:
            fields[PER_POSITION + name] = tensor
        elif tensor.dim() == 1 or tensor.isfinite():  # no bounds: not shipped
            fields[PER_ROW + name] = tensor.expand(rows).contiguous()
    return fields


def row_hash(rows: Tensor) -> Tensor:
    """[B,P] int -> [B] int64, equal for equal rows; different ones collide with probability
    2^-64."""
    if rows.dim() == 1:
        return rows
    generator = torch.Generator().manual_seed(0)
    bound = 2**63 - 1
    weights = torch.randint(-bound, bound, (rows.shape[1],), generator=generator) | 1
    return (rows.long() * weights.to(rows.device)).sum(1)


@contextmanager
def in_place(estimator: Estimator) -> Iterator[None]:
    """Within, NeMo-RL's trainers create this estimator for `adv_estimator.name: nemo_algos`; stock
    names are theirs."""
    modules = [import_module(name) for name in CREATORS if versions.present(name)]
    stock = [getattr(module, FACTORY) for module in modules]
    for module, factory in zip(modules, stock, strict=True):
        setattr(module, FACTORY, _creating(estimator, factory))
    try:
        yield
    finally:
        for module, factory in zip(modules, stock, strict=True):
            setattr(module, FACTORY, factory)


def _creating(estimator: Estimator, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def create(master_config: Any) -> Any:
        section = versions.get(master_config.grpo, "adv_estimator", {})
        return estimator if versions.get(section, "name") == NAME else stock(master_config)

    return create

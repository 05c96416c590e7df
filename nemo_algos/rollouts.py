"""What flows in: one rollout batch of B sequences, S positions, G groups (of one prompt each)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nemo_algos.core.groups import Groups


@dataclass(frozen=True)
class Rollouts:
    """One rollout batch; all log-probs in nats, of their own token, at the sampling temperature.

    group          [B]    integer labels, any order and any values; equal label = same prompt
    rewards        [B]    one finite number per sequence (kept in float64)
    mask           [B,S]  bool, True on response tokens; holes and empty rows are allowed
    old_logprobs   [B,S]  log pi_old, the policy that sampled, as the trainer computes it
    ref_logprobs   [B,S]  log pi_ref, where a method or the KL penalty needs it
    entropy        [B,S]  full-vocabulary Shannon entropy of pi_old, nats, where a method needs it
    gen_logprobs   [B,S]  the sampler's own log-probs, where off-policy correction needs them
    sample_mask    [B]    bool, False where the trainer masks the sequence out whole (that is no
                          empty response: batch statistics leave it out); none: all take part

    Each may be given as (nested) lists of numbers. Raises ValueError when shapes or dtypes disagree
    or a reward is not finite.
    """

    group: Tensor
    rewards: Tensor
    mask: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    gen_logprobs: Tensor | None = None
    sample_mask: Tensor | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _tensor(field.name, getattr(self, field.name)))
        object.__setattr__(self, "rewards", self.rewards.double())
        if self.mask.dim() != 2 or self.mask.dtype != torch.bool:
            raise ValueError(
                f"mask must be a bool tensor [B, S], got {self.mask.dtype} {list(self.mask.shape)}"
            )
        for name in (field.name for field in fields(self)):
            value, per_row = getattr(self, name), name in ("group", "rewards", "sample_mask")
            shape = self.mask.shape[:1] if per_row else self.mask.shape
            if value is not None and value.shape != shape:
                raise ValueError(
                    f"{name} has shape {list(value.shape)}, but the mask {list(self.mask.shape)} "
                    f"asks for {list(shape)}"
                )
        bad = (~self.rewards.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise ValueError(
                f"rewards must be finite, but sequence {bad[0]} has {self.rewards[bad[0]]} "
                f"({len(bad)} such): make the reward function return a number"
            )

    def __len__(self) -> int:
        return self.mask.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Rollouts:
        """The sub-batch of these rows (indices [N], a bool mask [B], or a slice)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[rows] for k, v in values.items() if v is not None})

    @cached_property
    def groups(self) -> Groups:
        """The sequences of each prompt."""
        return Groups.of(self.group)

    @cached_property
    def kept(self) -> Tensor:
        """[B] bool: what `sample_mask` keeps."""
        everything = self.mask.new_ones(len(self))
        return everything if self.sample_mask is None else self.sample_mask.bool()

    @cached_property
    def lengths(self) -> Tensor:
        """[B] response tokens per sequence, |o_i|."""
        return self.mask.sum(1)


def _tensor(name: str, values: Any) -> Tensor | None:
    if values is None or isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"{name} must be a tensor, or lists of numbers of one length: {error}"
        raise ValueError(reason) from None

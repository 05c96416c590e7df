"""The fields of a rollout batch: tensors of the right shape, type and range, or a sentence."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

TENSORS = {  # the fields that are tensors: whether [B], else [B,S]
    "group": True,
    "rewards": True,
    "outcomes": True,
    "mask": False,
    "old_logprobs": False,
    "ref_logprobs": False,
    "entropy": False,
    "gen_logprobs": False,
    "rollout_is_weights": False,
    "sample_mask": True,
    "prompt": True,
    "drift": True,
}


def validate_fields(given: dict[str, Any]) -> dict[str, Any]:
    """The fields as tensors, rewards in float64, the mask without masked rows; or ValueError."""
    values: dict[str, Any] = {k: _tensor(k, v) if k in TENSORS else v for k, v in given.items()}
    for name in ("group", "rewards", "mask", "old_logprobs"):
        if values[name] is None:
            raise ValueError(f"{name} is None: every method needs it")
    mask = values["mask"]
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise ValueError(f"mask must be a bool tensor [B, S], got {mask.dtype} {list(mask.shape)}")
    for name, per_row in TENSORS.items():
        _check_shape(name, values[name], mask, per_row)
    for name in ("rewards", "outcomes"):
        if values[name] is not None:
            values[name] = values[name].double()
            _check_finite(name, values[name])
    if not values["group"].isfinite().all():
        raise ValueError("group has labels that are not finite. Give each prompt an integer.")
    kept = values["sample_mask"]
    masked = mask if kept is None else mask & kept.bool()[:, None]
    parts = _parts(values["reward_parts"], values["reward_weights"], mask)
    return values | {"mask": masked, "reward_parts": parts}


def _check_shape(name: str, value: Tensor | None, mask: Tensor, per_row: bool) -> None:
    shape = mask.shape[:1] if per_row else mask.shape
    if value is not None and value.shape != shape:
        raise ValueError(
            f"{name} has shape {list(value.shape)}, but the mask has {list(mask.shape)}, so it "
            f"must have {list(shape)}"
        )


def _parts(
    given: Mapping[str, Any] | None, weights: Mapping[str, float] | None, mask: Tensor
) -> dict[str, Tensor] | None:
    """Each part of the reward in float64; weights of parts that are there."""
    if unknown := (weights or {}).keys() - (given or {}).keys():
        listed = ", ".join(sorted(unknown))
        what = "`reward_weights` has keys that are not in `reward_parts`"
        raise ValueError(f"{what}: {listed}")
    if given is None:
        return None
    doubles = dict[str, Tensor]()
    for key, values in given.items():
        name, part = f"reward_parts[{key!r}]", _tensor(key, values)
        _check_shape(name, part, mask, per_row=True)
        assert part is not None
        _check_finite(name, part)
        doubles[key] = part.double()
    return doubles


def _check_finite(name: str, values: Tensor) -> None:
    bad = (~values.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"{name} must be finite, but sequence {bad[0]} has {values[bad[0]]} "
            f"({len(bad)} such). The reward function must return a number."
        )


def _tensor(name: str, values: Any) -> Tensor | None:
    """Without gradient: all that flows in is constant for the loss."""
    if values is None or isinstance(values, Tensor):
        return values.detach() if values is not None and values.requires_grad else values
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"{name} must be a tensor, or lists of numbers of one length: {error}"
        raise ValueError(reason) from None


def prompt_key(tokens: Sequence[int]) -> int:
    """A number of 64 bits that a prompt's token ids always have, and others hardly ever."""
    digest = hashlib.blake2b(array("q", tokens).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)

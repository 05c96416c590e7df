"""What flows in: one rollout batch of B sequences, S positions, G groups (of one prompt each)."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from nemo_algos.algorithms import core
from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.algorithms.shapes import Mask, PerSequence, PerToken

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
    "turn": False,
    "last_turn": True,
}
TURN_PART = re.compile("turn_([1-9][0-9]{0,2})")  # the part of the reward that a turn has earned


def validate_fields(given: dict[str, Any]) -> dict[str, Any]:
    """The fields as tensors, rewards in float64, the mask without masked rows; or ValueError."""
    values = dict(given)
    for name, value in given.items():
        if name in TENSORS:
            values[name] = _tensor(name, value)
    for name in ("group", "rewards", "mask", "old_logprobs"):
        if values[name] is None:
            raise ValueError(f"{name} is None: every method needs it")
    mask = values["mask"]
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise ValueError(f"mask must be a bool tensor [B, S], got {mask.dtype} {list(mask.shape)}")
    for name, per_row in TENSORS.items():
        _check_kind(name, values[name])
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
    by_part = _by_turn(parts or {}, values["reward_weights"] or {})
    given = values["turn_rewards"]
    earned = _turn_rewards(by_part if given is None else given, mask)
    turn = _turns(values["turn"], earned is not None, mask)
    last = values["last_turn"]
    if last is None and turn is not None:
        last = core.turns.last(turn, mask)
    return values | {
        "mask": masked,
        "reward_parts": parts,
        "turn": turn,
        "last_turn": last,
        "turn_rewards": earned,
    }


def _turn_rewards(given: Any, mask: Mask) -> Tensor | None:
    """[B,T] in float64."""
    earned = _tensor("turn_rewards", given)
    if earned is None:
        return None
    if earned.dim() != 2 or len(earned) != len(mask):
        raise ValueError(
            f"turn_rewards has shape {list(earned.shape)}, but for {len(mask)} sequences it must "
            f"have [{len(mask)}, T], one value for each of T turns (0 for turns that there are not)"
        )
    _check_kind("turn_rewards", earned)
    _check_finite("turn_rewards", earned)
    return earned.double()


def _turns(given: Tensor | None, by_turn: bool, mask: Mask) -> Tensor | None:
    """The given turns; else, with rewards by turn, each unbroken run of the mask is one."""
    if given is None:
        return core.turns.runs(mask) if by_turn else None
    if given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(
            f"turn has dtype {given.dtype}, but the turn of a token is an integer, from 0 on"
        )
    reached = given.long().where(mask, -1)
    if bool(((given < 0) & mask).any() | (reached >= mask.shape[1]).any()):
        raise ValueError("turn is negative or above the number of tokens; turns count from 0")
    if bool((mask & (given < reached.cummax(1).values)).any()):
        raise ValueError("turn falls within a response. Number its turns in their order, from 0.")
    return given


def _check_kind(name: str, value: Tensor | None) -> None:
    """Raises ValueError for a tensor that holds no real numbers to compute with."""
    if value is None:
        return
    if value.is_meta:
        raise ValueError(f"{name} is a meta tensor, which has no data. Materialise it first.")
    narrow = value.is_floating_point() and value.itemsize == 1
    if value.is_complex() or narrow:
        raise ValueError(f"{name} has dtype {value.dtype}. Convert it to float32 or bfloat16.")


def _check_shape(name: str, value: Tensor | None, mask: Mask, per_row: bool) -> None:
    shape = mask.shape[:1] if per_row else mask.shape
    if value is not None and value.shape != shape:
        each = "one value per sequence" if per_row else "one per token"
        raise ValueError(
            f"{name} has shape {list(value.shape)}, but for a mask of {list(mask.shape)} it must "
            f"have {list(shape)}, {each}"
        )


def _parts(
    given: Mapping[str, Any] | None, weights: Mapping[str, float] | None, mask: Mask
) -> dict[str, Tensor] | None:
    """Each part of the reward in float64; weights of parts that are there."""
    unknown = (weights or {}).keys() - (given or {}).keys()
    if unknown:
        listed = ", ".join(sorted(unknown))
        raise ValueError(f"`reward_weights` has keys that are not in `reward_parts`: {listed}")
    if given is None:
        return None
    doubles = dict[str, Tensor]()
    for key, values in given.items():
        name = f"reward_parts[{key!r}]"
        part = _tensor(key, values)
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
    """Without gradient: all that flows in is constant for the loss. Texts become their number."""
    if values is None or isinstance(values, Tensor):
        if values is not None and values.requires_grad:
            return values.detach()
        return values
    if name == "group" and all(isinstance(label, str) for label in values):
        values = [_number(label.encode()) for label in values]
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be a tensor, or lists of numbers of one length: {error}"
        ) from None


def _by_turn(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor | None:
    """`turn_rewards` [B,T] of the parts [B] named turn_1, turn_2, ...; None where none is."""
    numbers = {name: TURN_PART.fullmatch(name) for name in parts}
    turns = {}
    for name, match in numbers.items():
        if match:
            turns[int(match[1])] = name
    if not turns:
        return None
    nothing = torch.zeros_like(next(iter(parts.values())), dtype=torch.float64)
    earned = [nothing] * max(turns)
    for number, name in turns.items():
        earned[number - 1] = weights.get(name, 1.0) * parts[name]
    return torch.stack(earned, 1)


def prompt_key(tokens: Sequence[int]) -> int:
    """A number of 64 bits that a prompt's token ids always have, and others hardly ever."""
    return _number(array("q", tokens).tobytes())


def _number(key: bytes) -> int:
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@dataclass(frozen=True)
class Rollouts:
    """One rollout batch; all log-probs in nats, of their own token, at the sampling temperature.

    group          [B]    integer or text labels, in any order; equal label = same prompt
    rewards        [B]    one finite number per sequence (kept in float64)
    outcomes       [B]    the verifier's own rewards, where `rewards` are shaped or scaled: what
                          tells a success, and how often there is one
    mask           [B,S]  bool, True on response tokens; holes and empty rows are allowed
    old_logprobs   [B,S]  log pi_old, the policy that sampled, as the trainer computes it
    ref_logprobs   [B,S]  log pi_ref, where a method or the KL penalty needs it
    entropy        [B,S]  full-vocabulary Shannon entropy of pi_old, nats, where a method needs it
    gen_logprobs   [B,S]  the sampler's own log-probs, where off-policy correction needs them
    rollout_is_weights [B,S]  each token's factor in the loss, of `Algorithm.correct`
    sample_mask    [B]    bool, False where the trainer masks the sequence out whole: its tokens
                          leave the mask, and no batch statistic counts it, unlike an empty response
    reward_parts   [B]    each, by name: what the reward is the weighted sum of, where a method
                          reads them; reward_weights: the weights, 1 where none is named
    prompt         [B]    int64, the prompt's own number whenever it comes (`prompt_key`), where a
                          memory needs it
    drift          [B]    how far the policy has moved since the batch before, the same for all:
                          mean |log pi - log pi then| over that batch's tokens, nats, where a memory
                          needs it
    turn           [B,S]  integer, the turn of each response token, from 0, where a method goes by
                          turn; default: each unbroken run of the mask is a turn
    last_turn      [B]    integer, the turn that each response ended in; default: that of its last
                          token in the mask as it was given, before sample_mask or a rejection
    turn_rewards   [B,T]  what each turn has earned, where a method goes by turn; what of the reward
                          is in none of them came with the last turn. Default: the parts turn_1, ...

    Each may be given as (nested) lists of numbers, and is taken without its gradient. Raises
    ValueError when shapes or dtypes disagree or a reward is not finite.
    """

    group: Tensor
    rewards: PerSequence
    mask: Mask
    old_logprobs: PerToken
    ref_logprobs: PerToken | None = None
    entropy: PerToken | None = None
    gen_logprobs: PerToken | None = None
    rollout_is_weights: Tensor | None = None
    sample_mask: PerSequence | None = None
    reward_parts: Mapping[str, Tensor] | None = None
    reward_weights: Mapping[str, float] | None = None
    prompt: Tensor | None = None
    drift: Tensor | None = None
    outcomes: PerSequence | None = None
    turn: Tensor | None = None
    last_turn: Tensor | None = None
    turn_rewards: Tensor | None = None

    largest_logprob: ClassVar[float] = 1e-3
    """What a log-prob may be at most: rounding can lift a certain token's above 0."""

    def __post_init__(self) -> None:
        for name, value in validate_fields(
            {f.name: getattr(self, f.name) for f in fields(self)}
        ).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return self.mask.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Rollouts:
        """The sub-batch of these rows (indices [N], a bool mask [B], or a slice)."""
        part = object.__new__(type(self))  # without a check: rows of what is valid are
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                value = value[rows]
            object.__setattr__(part, field.name, value)
        parts = self.reward_parts and {k: v[rows] for k, v in self.reward_parts.items()}
        object.__setattr__(part, "reward_parts", parts)
        return part

    def column(self, name: str | None) -> Tensor:
        """[B] float64: the part of the reward of this name, None: the outcome; or ValueError."""
        parts = self.reward_parts or {}
        if name is not None and name not in parts:
            known = ", ".join(sorted(parts)) or "none"
            raise ValueError(f"unknown part of the reward {name!r}; it has: {known}")
        whole = self.rewards if self.outcomes is None else self.outcomes
        return whole if name is None else parts[name]

    @cached_property
    def groups(self) -> Groups:
        return Groups.of(self.group)

    @cached_property
    def kept(self) -> Tensor:
        """[B] bool: what `sample_mask` keeps."""
        everything = self.mask.new_ones(len(self))
        if self.sample_mask is None:
            return everything
        return self.sample_mask.bool()

    @cached_property
    def marks(self) -> Tensor:
        """[B,1] float64, the sum of a row's old log-probs: hardly two rows have the same."""
        return self.old_logprobs.where(self.mask, 0.0).double().sum(1, keepdim=True)

    @cached_property
    def lengths(self) -> Tensor:
        """[B] response tokens per sequence, |o_i|."""
        return self.mask.sum(1)

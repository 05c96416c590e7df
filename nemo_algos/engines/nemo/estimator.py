"""A method's driver half behind NeMo-RL's `compute_advantage`, and its signals' way to the loss."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from nemo_rl.algorithms import advantage_estimator
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from nemo_rl.algorithms.utils import get_gdpo_reward_component_keys
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core import turns
from nemo_algos.algorithms.kernel import Memory, Signals
from nemo_algos.algorithms.rollouts import Rollouts, prompt_key
from nemo_algos.algorithms.shapes import Mask, PerSequence, PerToken
from nemo_algos.engines.nemo import columns, versions

LOG = logging.getLogger(__name__)
EXACT = "entropy/exact"  # as the embedded engine logs it: the mean over response tokens
PENALTIES = ("invalid_tool_call_advantage", "malformed_thinking_advantage")  # below `grpo`
OUTCOMES = "nemo_algos_outcomes"  # of a batch [B]: its rewards before NeMo-RL scales and shapes
UNPENALIZED = "env_reward"  # NeMo-RL's, with `grpo.length_penalty`: rewards [B] before that


class Limits(NamedTuple):
    """What NeMo-RL may still do to advantages: overwrite messages, then clamp all of them.

    low, high: `grpo.advantage_clip_*`; penalties: what tokens of a message that NeMo Gym has marked
    get. None, and (), where a config has none.
    """

    low: float | None = None
    high: float | None = None
    penalties: tuple[float, ...] = ()

    @staticmethod
    def of(grpo: Any) -> "Limits":
        """Those of a config's section `grpo`."""
        penalties = (versions.get(grpo, key) for key in PENALTIES)
        return Limits(
            low=versions.get(grpo, "advantage_clip_low"),
            high=versions.get(grpo, "advantage_clip_high"),
            penalties=tuple(value for value in penalties if value is not None),
        )

    def lead_to(self, trained: Tensor, computed: Tensor) -> bool:
        """Whether NeMo-RL can have made one [B,S] of the other."""
        if trained.shape != computed.shape:
            return False
        same = trained == self._clamp(computed)
        for value in self.penalties:
            same |= trained == self._clamp(computed.new_tensor(value))
        return bool(same.all())

    def _clamp(self, advantages: Tensor) -> Tensor:
        if self.low is None and self.high is None:
            return advantages
        return advantages.clamp(min=self.low, max=self.high)


class Forward(NamedTuple):
    """What the forward for log pi_old says of a batch beside them, and the data plane has.

    entropy [B,S]; masks: its token_mask [B,S] and sample_mask [B], which tell an empty response
    from one that NeMo-RL masks out; sampled [B,S]: the sampler's log-probs; prompts [B,P]: for a
    memory, where a trainer may pass groups as prompt_ids.
    """

    entropy: PerToken | None = None
    masks: tuple[Tensor, Tensor] | None = None
    sampled: Tensor | None = None
    prompts: Tensor | None = None


@dataclass
class Step:
    """What compute_advantage made of a batch; train takes the signals once.

    rollouts: as corrected; advantages [B,S] as NeMo-RL gets them; metrics: the method's.
    """

    rollouts: Rollouts
    advantages: Tensor
    signals: Signals
    metrics: dict[str, float]
    taken: bool = False


class Estimator:
    """compute_advantage of NeMo-RL's protocol.

    group_size: of complete groups, grpo.num_generations_per_prompt; batch_size: sequences of an
    optimizer batch, policy.train_global_batch_size; pad: the token behind shorter prompts; memory:
    to begin with; keep: is given the memory after each batch. A step goes three ways: the policy's
    proxy leaves `forward`, compute_advantage takes it and leaves `step`, and the proxy's train
    takes the step's signals. `patches` sets the limits, once.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        group_size: int = 1,
        batch_size: int | None = None,
        pad: int | None = None,
        memory: Memory = MappingProxyType({}),
        keep: Callable[[Memory], None] = lambda memory: None,
    ) -> None:
        self.algorithm = algorithm
        self.needs = algorithm.needs
        self.group_size = group_size
        self.batch_size = batch_size
        self.pad = pad
        self.memory = memory
        self.keep = keep
        self.limits = Limits()
        self.forward = Forward()
        self.step: Step | None = None

    def compute_advantage(
        self,
        prompt_ids: Tensor,
        rewards: PerSequence,
        mask: Mask,
        repeated_batch: Any = None,
        logprobs_policy: PerToken | None = None,
        logprobs_reference: PerToken | None = None,
        teacher_logprobs: PerToken | None = None,
        prev_logprobs: PerToken | None = None,
        generation_logprobs: PerToken | None = None,
        sample_mask: PerSequence | None = None,
        valid_mask: PerSequence | None = None,
    ) -> Any:
        """The advantages [B,S], float32, of rewards [B], mask and log-probs [B,S].

        prompt_ids [B,P]: equal rows are one group; valid_mask [B]: 0 where a row stands in for a
        response that never came, and is of no group. The arguments are those that NeMo-RL's
        trainers pass, by name (what no line here reads, its other estimators do). Raises TypeError
        for another one, or where log pi_old is missing; ValueError for an incomplete group.
        """
        forward, self.forward = self.forward, Forward()
        old = forward.sampled if logprobs_policy is None else logprobs_policy
        if old is None:
            raise TypeError(
                "compute_advantage() needs `logprobs_policy`, the old policy's log-probs [B, S]"
            )
        entropy = forward.entropy
        group = row_hash(prompt_ids)
        prompts = prompt_ids if forward.prompts is None else forward.prompts
        batch = repeated_batch or {}
        parts = reward_parts(batch)
        by_turn = "turn_rewards" in self.needs
        last_turn = _last_turn(mask.bool(), forward.masks, batch) if by_turn else None
        if generation_logprobs is None:
            generation_logprobs = forward.sampled
        if generation_logprobs is None and "gen_logprobs" in self.needs:
            generation_logprobs = _of_messages(batch, mask.shape[1])
        alone = -1 - torch.arange(len(group), device=group.device)
        rollouts = Rollouts(
            group=group if valid_mask is None else group.where(valid_mask.bool(), alone),
            rewards=rewards,
            mask=mask.bool(),
            old_logprobs=old,
            ref_logprobs=logprobs_reference,
            entropy=entropy,
            gen_logprobs=generation_logprobs,
            sample_mask=_kept_rows(mask, sample_mask, forward.masks, batch),
            outcomes=batch.get(UNPENALIZED, batch.get(OUTCOMES)),
            last_turn=last_turn,
            reward_parts=parts if self.needs & {"reward_parts", "turn_rewards"} else None,
            prompt=prompt_keys(prompts, self.pad) if "prompt" in self.needs else None,
        )
        check_complete(_checked(group, valid_mask, rollouts.sample_mask), self.group_size)
        known = {} if entropy is None else {EXACT: masked_mean(entropy, rollouts.mask)}
        remark = "" if self.step else self.algorithm.success_remark(rollouts)
        if remark:
            LOG.warning("in the first batch %s", remark)
        rollouts, corrected = self.algorithm.correct(rollouts)
        signals = self.algorithm.signals(rollouts, self.memory, self.batch_size)
        if "memory" in self.needs:
            self.memory = signals.memory
            self.keep(self.memory)
        advantages = signals.advantages.float().expand(mask.shape).contiguous()
        known["groups/flat_share"] = float(rollouts.groups.flat(rollouts.rewards).double().mean())
        metrics = {**known, **corrected, **signals.metrics}
        self.step = Step(rollouts, advantages, signals, metrics)
        return result_type()(advantages)

    def signals_for(self, advantages: Tensor | None = None) -> dict[str, Tensor]:
        """The training batch's columns of signals by key, once for each compute_advantage.

        advantages [B,S]: the training batch's, None where nothing lies between. Raises ValueError
        where they are neither the ones that were computed nor what `limits` make of them.
        """
        step = self.step
        if step is None or step.taken:
            raise ValueError(
                "These advantages were already trained on, or compute_advantage was not called. "
                "The method's signals belong to one rollout batch: call it once for each."
            )
        step.taken = True
        if advantages is not None and not self.limits.lead_to(advantages, step.advantages):
            raise ValueError(
                "The advantages changed between compute_advantage and train, but not by "
                "`grpo.advantage_clip_low`, `grpo.advantage_clip_high` or a message's penalty. "
                "Remove what reorders the batch, or changes them, in this NeMo-RL."
            )
        return columns.write(step.signals, self.algorithm)

    def masks_for(self, token_mask: Mask, sample_mask: PerSequence) -> dict[str, Tensor]:
        """The training batch's masks [B,S] and [B], without what the correction has rejected.

        A sequence without a token left is masked out whole, so that no mean counts it.
        """
        if self.step is None or not self.algorithm.correction.rejects:
            return {}
        corrected = self.step.rollouts.mask
        taken = (token_mask * sample_mask[:, None]).bool()
        lost = taken.any(1) & ~corrected.any(1)
        return {
            "token_mask": token_mask * corrected.to(token_mask.dtype),
            "sample_mask": sample_mask.masked_fill(lost, 0),
        }


def _of_messages(batch: Any, width: int) -> Tensor | None:
    """The sampler's log-probs [B,S] of the messages: grpo_train passes no others."""
    if "message_log" not in batch:
        return None
    rows = []
    for log in batch["message_log"]:
        row = torch.cat([message["generation_logprobs"] for message in log])
        rows.append(F.pad(row, (0, width - len(row))))
    return torch.stack(rows)


def _last_turn(mask: Mask, masks: tuple[Tensor, Tensor] | None, batch: Any) -> Tensor:
    """[B]: of rows too that NeMo-RL masks out, whose mask [B,S] has no token left."""
    if masks is None and "message_log" in batch:
        answers = []
        for log in batch["message_log"]:
            answers.append(sum(message["role"] == "assistant" for message in log))
        return torch.tensor(answers).sub(1).clamp(min=0)
    tokens = mask if masks is None else masks[0].bool()
    return turns.last(turns.runs(tokens), tokens)


def _kept_rows(
    mask: Mask, sample_mask: PerSequence | None, masks: tuple[Tensor, Tensor] | None, batch: Any
) -> Tensor | None:
    """[B] bool: the rows that NeMo-RL does not mask out; None where nobody said.

    Synchronous trainers say it by `mask` [B,S] alone, where an empty response looks the same;
    without a forward for pi_old, by the rollouts' loss_multiplier.
    """
    if sample_mask is not None:
        return sample_mask.bool()
    if masks is None:
        multiplier = batch.get("loss_multiplier")
        if multiplier is None:
            return None
        return multiplier.bool()
    tokens = masks[0].bool()
    sample = masks[1].bool()
    return sample & (mask.bool().any(1) | ~tokens.any(1))


@functools.cache
def result_type() -> Callable[[Tensor], Any]:
    """What this NeMo-RL's trainers take of compute_advantage: the tensor [B,S], or what holds it.

    Its own GRPO estimator is asked. Raises ConfigError where it is neither, or cannot be asked.
    """
    rows = {"prompt_ids": torch.zeros(2, 1).long(), "rewards": torch.tensor([0.0, 1.0])}
    section: Any = {"use_leave_one_out_baseline": False, "normalize_rewards": False}  # of v0.7.0
    kind = getattr(advantage_estimator, "AdvEstimatorConfig", dict)
    try:
        stock = advantage_estimator.GRPOAdvantageEstimator(kind(**section), ClippedPGLossConfig())
        found = stock.compute_advantage(**rows, mask=torch.ones(2, 3))
    except Exception as error:  # whatever NeMo-RL's code raises
        versions.refuse([f"its GRPO estimator raises {type(error).__name__}: {error}"])
        raise AssertionError from error
    if isinstance(found, Tensor):
        return lambda advantages: advantages
    if not isinstance(getattr(found, "advantages", None), Tensor):
        versions.refuse([f"its GRPO estimator returns a {type(found).__name__} without advantages"])
    return type(found)


def masked_mean(values: Tensor, mask: Mask) -> float:
    """Of [B,S]; 0 where nothing is unmasked."""
    return float(values[mask].double().sum() / mask.sum().clamp(min=1))


def tensor_of(result: Any) -> Tensor:
    """The advantages of what compute_advantage returns."""
    if isinstance(result, Tensor):
        return result
    return result.advantages


def check_complete(group: Tensor, size: int) -> None:
    """Raise ValueError where a group [B] is not one, or several, of `size` rows."""
    count = group.unique(return_counts=True)[1]
    wrong = count % size != 0  # a prompt may be drawn twice
    if wrong.any():
        raise ValueError(
            f"A group has {int(count[wrong][0])} responses ({int(wrong.sum())} such groups), and "
            f"`grpo.num_generations_per_prompt` is {size}. NeMo-RL's dynamic sampling drops single "
            "responses where the rest of the group is equal. Set "
            "`grpo.use_leave_one_out_baseline: false` or `grpo.use_dynamic_sampling: false`."
        )


def _checked(group: Tensor, came: Tensor | None, kept: Tensor | None) -> Tensor:
    """The rows of groups [B] all of whose responses came, and of which one trains.

    NeMo-RL cuts a prompt above `data.max_input_seq_length` to a few tokens, masks its rows, and
    takes the responses for a part of it, by its old length: none is in a group with another.
    """
    checked = torch.ones_like(group, dtype=torch.bool)
    if came is not None:
        checked &= ~torch.isin(group, group[~came.bool()])
    if kept is not None:
        checked &= torch.isin(group, group[kept])
    return group[checked]


def row_hash(rows: Tensor) -> Tensor:
    """[B,P] int -> [B] int64, equal for equal rows; others collide with probability 2^-64."""
    if rows.dim() == 1:
        return rows
    generator = torch.Generator().manual_seed(0)
    bound = 2**63 - 1
    weights = torch.randint(-bound, bound, (rows.shape[1],), generator=generator) | 1
    return (rows.long() * weights.to(rows.device)).sum(1)


def reward_parts(batch: Any) -> dict[str, Tensor]:
    """[B] by name: NeMo-RL's `reward/NAME`, in v0.7.0 `reward1`, `reward2`, ..."""
    return {
        key.removeprefix("reward/"): batch[key] for key in get_gdpo_reward_component_keys(batch)
    }


def prompt_keys(rows: Tensor, pad: int | None) -> Tensor:
    """[B,P] token ids -> [B] int64: the prompt's number in every batch, however wide it is."""
    distinct, index = rows.unique(dim=0, return_inverse=True)
    keys = [prompt_key(_strip_padding(row, pad)) for row in distinct.tolist()]
    return torch.tensor(keys, dtype=torch.long)[index]


def _strip_padding(row: list[int], pad: int | None) -> list[int]:
    end = len(row)
    while end and row[end - 1] == pad:
        end -= 1
    return row[:end]


MEMORY = "nemo_algos_memory"  # a key of `grpo_save_state`, which goes to training_info.json


def keep_memory(save_state: Any, memory: Memory) -> None:
    """Put it into the state of the next checkpoint."""
    versions.put(save_state, MEMORY, memory)


def restore_memory(checkpointer: Any) -> Memory:
    """The memory in the checkpoint that the run goes on from; {} at the start of one."""
    path = checkpointer.get_latest_checkpoint_path()
    return (checkpointer.load_training_info(path) or {}).get(MEMORY, {})

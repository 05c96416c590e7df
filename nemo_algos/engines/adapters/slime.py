"""The methods in slime's trainer (0.3): slime generates, rewards and steps; the loss is ours.

A file of --custom-config-path has the blocks `method:` and `loss_fn:` and names the functions here.
The driver half runs where slime makes advantages, on each data-parallel rank from the rows of all.
"""

import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import mpu
from slime.backends.megatron_utils import loss as slime_loss
from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import nemo_algos as na
from nemo_algos.engines.adapters.slime_settings import judge, warn

Data = dict[str, list[Any]]  # by name, of each response
FIELDS = {
    "log_probs": "old_logprobs", "ref_log_probs": "ref_logprobs",
    "rollout_log_probs": "gen_logprobs", "entropy": "entropy",
}  # fmt: skip
SHAPES = ("unconcat_tokens", "total_lengths", "response_lengths")
NO_SHARES = ("clip/positive", "clip/negative", "ratio/p99", "ratio/max")  # not sums over counts
padded = partial(pad_sequence, batch_first=True)


class OfResponse(NamedTuple):
    """What the loss needs of a response: its row in the signals of the whole rollout batch.

    counts: of its optimizer batch, by which our loss divides.
    batch_size: of the same batch, the number of responses by which slime divides what it is given.
    """

    number: int
    signals: na.Signals
    counts: na.Counts
    batch_size: int


@torch.no_grad()
def advantages(args: Namespace, rollout_data: dict[str, Any]) -> None:
    """For `custom_advantage_function_path`: the driver half.

    Raises ConfigError as `judge`, ValueError where rows are no whole groups of single responses.
    """
    algorithm, loss = judge(args)
    whole = _everyones(rollout_data)
    rewards = torch.tensor(whole["rewards"], dtype=torch.float64)
    rollouts = _rollouts(whole, _groups(whole, args.n_samples_per_prompt), rewards)
    if not hasattr(args, "method_warned"):  # slime keeps args as long as its actor lives
        args.method_warned = True
        warn(algorithm, loss, args)
        remark = algorithm.success_remark(rollouts)
        if remark:
            warnings.warn(f"step 1: {remark}", stacklevel=2)
    signals = algorithm.signals(rollouts)
    for name, value in signals.metrics.items():  # slime logs them
        rollout_data[name] = torch.tensor(value)
    steps = torch.tensor(whole["step"])
    counts = [na.Counts.of(rollouts.mask[steps == step]) for step in steps.unique()]
    per_token = signals.advantages.expand(rollouts.mask.shape)
    signals = replace(signals, reports={}, mark=None)
    rollout_data["advantages"] = []
    rollout_data["returns"] = []
    columns = ("partition", "total_lengths", "response_lengths", "log_probs")
    rows = zip(*(rollout_data[name] for name in columns), strict=True)
    for number, total, length, like in rows:
        own = slice_log_prob_with_cp(per_token[number, :length], total, length).to(like)
        returns: Any = own.clone()
        step = whole["step"][number]
        size = rollout_data["global_batch_sizes"][step]
        # slime hands its loss these very tensors, and no new field
        returns.method = OfResponse(number, signals, counts[step], size)
        rollout_data["advantages"].append(own)
        rollout_data["returns"].append(returns)


def method_loss(
    args: Namespace, batch: dict[str, Any], logits: Tensor, _: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """For `custom_loss_function_path`: a micro-batch's, times the batch size slime divides by."""
    algorithm, config = judge(args)
    if not all(hasattr(returns, "method") for returns in batch["returns"]):
        raise ValueError(
            "this version of slime copies `returns`, so the bounds are lost. Use slime 0.3.1."
        )
    given = {name: batch[name] for name in SHAPES}
    given |= slime_loss.get_rollout_top_p_logprob_kwargs(args, batch)
    scored = slime_loss.get_log_probs_and_entropy(logits, args=args, with_entropy=True, **given)[1]
    logprobs = padded(_whole(scored["log_probs"], batch))
    entropy = padded(_whole(scored["entropy"], batch))
    rollouts = _rollouts(_tokens(batch), [*range(len(logprobs))], torch.zeros(len(logprobs)))
    numbers = torch.tensor([returns.method.number for returns in batch["returns"]])
    # a micro-batch lies within an optimizer batch: all its responses have these signals and counts
    first: OfResponse = batch["returns"][0].method
    signals = first.signals[numbers][:, : logprobs.shape[1]]
    loss = na.policy_loss(algorithm, logprobs, rollouts, signals, first.counts, config, entropy)
    # all ranks of context parallelism have the same loss
    share = first.batch_size / mpu.get_context_parallel_world_size()
    stats = replace(loss.stats, sums=loss.stats.sums | vars(first.counts))
    log = {}
    for name, value in stats.summary().items():
        if not name.startswith(NO_SHARES):
            log[name] = logits.new_tensor(value * share)
    # 0, but with a gradient: a rank that has none of the tokens takes part in the backward, too
    graph = sum(of_response[:0].sum() for of_response in scored["log_probs"])
    return loss.value * share + graph, log


def _whole(rows: list[Tensor], data: dict[str, Any]) -> list[Tensor]:
    """Of each response all the tokens, where context parallelism has cut it."""
    cuts = zip(rows, data["total_lengths"], data["response_lengths"], strict=True)
    return [all_gather_with_cp(*cut) for cut in cuts]


@torch.no_grad()
def _tokens(data: dict[str, Any]) -> Data:
    tokens = {}
    for theirs, ours in FIELDS.items():
        if data.get(theirs):
            tokens[ours] = _whole(data[theirs], data)
    return tokens | {"mask": data["loss_masks"]}


def _everyones(data: dict[str, Any]) -> Data:
    """The rows of all data-parallel ranks in order, on the CPU, and their optimizer batches."""
    own: Data = {
        "number": data["partition"],
        "response": data["rollout_ids"],
        "rewards": data["rewards"],
        "step": _steps(data),
    }
    for name, tensors in _tokens(data).items():
        own[name] = [tensor.cpu() for tensor in tensors]
    group = mpu.get_data_parallel_group_gloo(with_context_parallel=False)
    # one place for each rank, which is overwritten
    ranks = [own] * mpu.get_data_parallel_world_size(with_context_parallel=False)
    dist.all_gather_object(ranks, own, group)
    whole: Data = {name: [] for name in own}
    for rank in ranks:
        for name in own:
            whole[name] += rank[name]
    order = sorted(range(len(whole["number"])), key=whole["number"].__getitem__)
    for name, rows in whole.items():
        whole[name] = [rows[i] for i in order]
    return whole


def _steps(data: dict[str, Any]) -> list[int]:
    """The optimizer batch of each row of this rank, in the order of its micro-batches."""
    of_micro_batches = []
    for step, count in enumerate(data["num_microbatches"]):
        of_micro_batches += [step] * count
    of_rows = []
    for step, rows in zip(of_micro_batches, data["micro_batch_indices"], strict=True):
        of_rows += [step] * len(rows)
    return of_rows


def _groups(whole: Data, size: int) -> list[int]:
    """A group is consecutive rows of the rollout batch."""
    if len({*whole["response"]}) < len(whole["response"]):
        raise ValueError("several samples per rollout are not supported")
    if len(whole["number"]) % size:
        raise ValueError(
            "slime drops a part of a group. Set global_batch_size to a divisor of the batch."
        )
    return [number // size for number in whole["number"]]


def _rollouts(rows: Data, group: list[int], rewards: Tensor) -> na.Rollouts:
    """A response that slime's filters have masked out whole is left out; it is no empty one."""
    mask = padded(rows["mask"]).bool()
    tokens = {}
    for k in FIELDS.values():
        if k in rows:
            tokens[k] = padded(rows[k])
    return na.Rollouts(group, rewards, mask, sample_mask=mask.any(1), **tokens)

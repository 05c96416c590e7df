"""The methods in slime's trainer (0.3): slime generates, rewards and steps; the loss is ours.

A file of --custom-config-path has the blocks `method:` and `loss_fn:` and names the functions here.
The driver half runs where slime makes advantages, on each data-parallel rank from the rows of all.
"""

import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

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


@torch.no_grad()
def advantages(args: Namespace, rollout_data: dict[str, Any]) -> None:
    """For `custom_advantage_function_path`: the driver half.

    Raises ConfigError as `judged`, ValueError where rows are no whole groups of single responses.
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
    steps = torch.tensor(whole["step"])
    counts = [na.Counts.of(rollouts.mask[steps == step]) for step in steps.unique()]
    rollout_data |= {k: torch.tensor(v) for k, v in signals.metrics.items()}  # slime logs them
    shown = signals.advantages.expand(rollouts.mask.shape)
    signals = replace(signals, reports={}, mark=None)
    numbers = rollout_data["partition"]
    cuts = zip(rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    rows = zip(numbers, cuts, rollout_data["log_probs"], strict=True)
    local = [slice_log_prob_with_cp(shown[i, : cut[1]], *cut).to(like) for i, cut, like in rows]
    rollout_data |= {"advantages": local, "returns": [x.clone() for x in local]}
    for number, tensor in zip(numbers, rollout_data["returns"], strict=True):
        step = whole["step"][number]  # slime hands its loss these very tensors, and no new field
        tensor.method = number, signals, counts[step], rollout_data["global_batch_sizes"][step]


def method_loss(
    args: Namespace, batch: dict[str, Any], logits: Tensor, _: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """For `custom_loss_function_path`: a micro-batch's, times the batch size slime divides by."""
    algorithm, config = judge(args)
    if not all(hasattr(x, "method") for x in batch["returns"]):
        raise ValueError(
            "this version of slime copies `returns`, so the bounds are lost. Use slime 0.3.1."
        )
    given = {k: batch[k] for k in SHAPES} | slime_loss.get_rollout_top_p_logprob_kwargs(args, batch)
    scored = slime_loss.get_log_probs_and_entropy(logits, args=args, with_entropy=True, **given)[1]
    logprobs, entropy = (padded(_whole(scored[k], batch)) for k in ("log_probs", "entropy"))
    rollouts = _rollouts(_tokens(batch), [*range(len(logprobs))], torch.zeros(len(logprobs)))
    numbers, wholes, counts, sizes = zip(*(x.method for x in batch["returns"]), strict=True)
    signals = wholes[0][torch.tensor(numbers)][:, : logprobs.shape[1]]
    loss = na.policy_loss(algorithm, logprobs, rollouts, signals, counts[0], config, entropy)
    share = sizes[0] / mpu.get_context_parallel_world_size()  # whose ranks have the same loss each
    shares = replace(loss.stats, sums=loss.stats.sums | vars(counts[0])).summary().items()
    log = {k: logits.new_tensor(v * share) for k, v in shares if not k.startswith(NO_SHARES)}
    graph = sum(x[:0].sum() for x in scored["log_probs"])  # of a rank with none of the tokens too
    return loss.value * share + graph, log


def _whole(rows: list[Tensor], data: dict[str, Any]) -> list[Tensor]:
    """Of each response all the tokens, where context parallelism has cut it."""
    cuts = zip(rows, data["total_lengths"], data["response_lengths"], strict=True)
    return [all_gather_with_cp(*cut) for cut in cuts]


@torch.no_grad()
def _tokens(data: dict[str, Any]) -> Data:
    known = {ours: data[theirs] for theirs, ours in FIELDS.items() if data.get(theirs)}
    return {k: _whole(rows, data) for k, rows in known.items()} | {"mask": data["loss_masks"]}


def _everyones(data: dict[str, Any]) -> Data:
    """The rows of all data-parallel ranks in order, on the CPU, and their optimizer batches."""
    steps = [step for step, n in enumerate(data["num_microbatches"]) for _ in range(n)]
    pieces = zip(steps, data["micro_batch_indices"], strict=True)
    own = {
        **{k: [x.cpu() for x in rows] for k, rows in _tokens(data).items()},
        "number": data["partition"],
        "response": data["rollout_ids"],
        "rewards": data["rewards"],
        "step": [step for step, rows in pieces for _ in rows],
    }
    group = mpu.get_data_parallel_group_gloo(with_context_parallel=False)
    parts = [own] * mpu.get_data_parallel_world_size(with_context_parallel=False)
    dist.all_gather_object(parts, own, group)
    rows = {k: [x for part in parts for x in part[k]] for k in own}
    order = sorted(range(len(rows["number"])), key=rows["number"].__getitem__)
    return {k: [v[i] for i in order] for k, v in rows.items()}


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
    """What slime's filters have masked out whole is no empty response."""
    mask = padded(rows["mask"]).bool()
    tokens = {k: padded(rows[k]) for k in FIELDS.values() if k in rows}
    return na.Rollouts(group, rewards, mask, sample_mask=mask.any(1), **tokens)

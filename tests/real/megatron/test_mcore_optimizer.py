"""An optimizer step of megatron's under TP=2 x DP=2 equals one process's written out.

Its clipping over all ranks is included, and a checkpoint of that model is read by one process.

SGD with megatron's DDP (its DistributedOptimizer knows Adam only), Adam with DistributedOptimizer.
"""

import queue
from pathlib import Path
from typing import Any, Literal

import model
import oracle as one_process
import pytest
import ranks
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from oracle import Oracle
from parallel import Parallel, apart
from torch import Tensor

RATE, LIMIT = 0.1, 0.5
EPS = 1e-2  # so large that Adam does not turn the rounding of small gradients into steps
Name = Literal["sgd", "adam"]
LAYOUT = model.Layout(tp=2, dp=2)
METHOD = "etr"
STEPS = [("sgd", False, 1e-6), ("adam", False, 5e-6), ("adam", True, 5e-6)]  # tolerance


def step(rank: Parallel, name: Name, distributed: bool) -> float:
    """Changes the rank's weights; the norm of the gradient over all ranks."""
    config = OptimizerConfig(
        optimizer=name,
        lr=RATE,
        weight_decay=0.0,
        sgd_momentum=0.0,
        adam_eps=EPS,
        clip_grad=LIMIT,
        use_distributed_optimizer=distributed,
    )
    optimizer: Any = get_megatron_optimizer(config, [rank.ddp])
    done, norm, _ = optimizer.step()
    assert done
    return float(norm)


def expected(
    weights: dict[str, Tensor], grads: dict[str, Tensor], name: Name
) -> tuple[dict[str, Tensor], float]:
    """The whole model's weights after the step, and the gradient's norm."""
    norm = float(sum(g.double().square().sum() for g in grads.values())) ** 0.5
    clip = min(1.0, LIMIT / (norm + 1e-6))
    after = {}
    for key, weight in weights.items():
        g = clip * grads[key]
        after[key] = weight - RATE * (g if name == "sgd" else g / (g.abs() + EPS))
    return after, norm


def after_a_step(oracle: Oracle, name: Name, distributed: bool) -> tuple[Parallel, float]:
    rank = Parallel(LAYOUT, oracle, use_distributed_optimizer=distributed)
    rank.forward_backward(METHOD)
    norm = step(rank, name, distributed)
    return rank, norm


def largest_error(rank: Parallel, weights: dict[str, Tensor]) -> float:
    parameters = model.parameters(rank.part)
    return max(apart(p.detach(), model.cut(k, weights[k])) for k, p in parameters.items())


def errors(oracle: Oracle, name: Name, distributed: bool) -> tuple[float, float, float]:
    """The worst rank's errors, and how far a rank's weights moved at least.

    Of the weights after the step, and of the gradient's norm (relative).
    """
    weights, norm = expected(oracle.weights, oracle.grads[METHOD], name)
    assert norm > 2 * LIMIT  # the step is of clipped gradients

    def work() -> tuple[float, float, float]:
        rank, found = after_a_step(oracle, name, distributed)
        moved = largest_error(rank, oracle.weights)
        return largest_error(rank, weights), abs(found / norm - 1), -moved

    error, of_norm, unmoved = map(max, zip(*ranks.run(LAYOUT.world, work), strict=True))
    return error, of_norm, -unmoved


@pytest.mark.parametrize(("name", "distributed", "near"), STEPS)
def test_a_step_equals_one_process(
    name: Name, distributed: bool, near: float, oracle: Oracle
) -> None:
    error, of_norm, moved = errors(oracle, name, distributed)
    assert error < near and of_norm < 1e-5 and moved > 1000 * near


def save(oracle: Oracle, folder: Path) -> tuple[Tensor, Tensor]:
    """Rows [N] and their log-probs [N,S] of a rank, after a step that moved the weights."""
    filesystem_async._results_queue = queue.Queue()  # else a process, which imports megatron anew
    rank, _ = after_a_step(oracle, "sgd", False)
    dist_checkpointing.save(rank.part.sharded_state_dict(), str(folder))
    rank.forward_backward(METHOD, forward_only=True)
    rows, logprobs, _ = zip(*rank.seen, strict=True)
    return torch.cat(rows), torch.cat(logprobs)


def load(oracle: Oracle, folder: Path) -> Tensor:
    """[B,S], by a plain log-softmax of one process."""
    whole = model.build(model.Layout())
    whole.load_state_dict(dist_checkpointing.load(whole.sharded_state_dict(), str(folder)))
    return one_process.dense(whole, oracle.tokens)[0].detach()


def test_a_checkpoint_of_two_tensor_ranks_is_read_by_one(oracle: Oracle, tmp_path: Path) -> None:
    saved = ranks.run(LAYOUT.world, lambda: save(oracle, tmp_path))
    (logprobs,) = ranks.run(1, lambda: load(oracle, tmp_path))
    for rows, wanted in saved:
        assert apart(logprobs[rows], wanted) < 2e-5
    assert sorted(torch.cat([rows for rows, _ in saved]).tolist()) == sorted([*range(8)] * 2)
    assert apart(logprobs, oracle.logprobs) > 0.1  # the step is in the checkpoint

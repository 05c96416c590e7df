"""Megatron's optimizer, and its first step written out: the norm clipped, then SGD or Adam."""

from typing import Any, Literal

from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from parallel import Parallel
from torch import Tensor

RATE, LIMIT = 0.1, 0.5
EPS = 1e-2  # so large that Adam does not turn the rounding of small gradients into steps
Name = Literal["sgd", "adam"]


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

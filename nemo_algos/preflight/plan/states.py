"""Bytes of weights, gradients and optimizer on a GPU, whatever the micro-batch."""

from nemo_algos.preflight.plan.parameters import Held, of_rank
from nemo_algos.preflight.plan.workload import Training


def states(run: Training, rank: int) -> dict[str, float]:
    """By component, on a pipeline rank."""
    held = of_rank(run.network, run.parallel, rank)
    s = run.states
    p = run.parallel
    dense = p.data / s.instances
    sharded = s.sharded or s.fully
    replicas = Held(dense, p.expert_data, dense) if sharded else Held(1, 1, 1)
    whole = Held(1, 1, 1) if not s.fully else replicas
    weights = _bytes(held, whole, s.weight)
    weights += s.linear_copies * (held.linear / whole.linear + held.experts / whole.experts)
    trained = held.times(s.trained)
    return {
        "weights": weights,
        "gradients": _bytes(trained, whole, s.gradient),
        "optimizer": (1 - s.on_host) * _optimizer(run, trained, replicas),
    }


def _bytes(held: Held, replicas: Held, each: float) -> float:
    return each * sum(n / r for n, r in zip(held, replicas, strict=True))


def _optimizer(run: Training, held: Held, replicas: Held) -> float:
    s = run.states
    each = s.main + s.moments + s.main_gradient
    if not s.muon:
        return _bytes(held, replicas, each)
    matrices = held._replace(other=0)
    others = Held(other=held.other)
    alone = Held(1, 1, 1) if s.muon_whole else replicas
    return _bytes(matrices, replicas, each - s.moments / 2) + _bytes(others, alone, each)

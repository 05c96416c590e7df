"""The most bytes allocated on a GPU in a training step, by component."""

from collections.abc import Iterator

from nemo_algos.preflight.plan.activations import layer, logits, stage
from nemo_algos.preflight.plan.parameters import of_layers
from nemo_algos.preflight.plan.states import states
from nemo_algos.preflight.plan.workload import Training


def schedule(run: Training, rank: int) -> Iterator[tuple[str, int]]:
    """Forwards F and backwards B of a pipeline rank, with their chunk, in Megatron-Core's order."""
    p = run.parallel
    chunks = len(run.network.stages) // run.parallel.pipeline
    group = p.warmup_group or p.pipeline
    total = run.micro_batches * chunks
    behind = p.pipeline - rank - 1
    interleaved = 2 * behind + (chunks - 1) * group + p.extra_forward
    warmup = min(total, interleaved if chunks > 1 else behind)

    def chunk(step: int) -> int:
        return step % (group * chunks) // group

    for step in range(total + warmup):
        if step < total:
            yield "F", chunk(step)
        if step >= warmup:
            yield "B", chunks - 1 - chunk(step - warmup)


def activations(run: Training, rank: int) -> dict[str, float]:
    """What is kept at the peak; and on top of it the loss, or the layers recomputed."""
    p = run.parallel
    net = run.network
    mine = net.stages[rank :: p.pipeline]
    last = rank == p.pipeline - 1
    kept, recomputed = (list(x) for x in zip(*(stage(run, s) for s in mine), strict=True))
    most, later = logits(run) if last else (0.0, 0.0)
    if last:
        kept[-1] += _ends(run, later)
    held = 0.0
    best = (0.0, 0.0, 0.0)
    for kind, chunk in schedule(run, rank):
        if kind == "F":
            held += kept[chunk]
            loss = most if chunk == len(mine) - 1 else 0.0
            best = max(best, (held, loss, 0.0), key=sum)
        else:
            best = max(best, (held, 0.0, recomputed[chunk]), key=sum)
            held -= kept[chunk]
    names = ("activations", "logits and log-probs", "recomputed layers")
    return dict(zip(names, best, strict=True))


def _ends(run: Training, logits: float) -> float:
    """Of the last stage's final norm, and of what predicts further tokens."""
    net = run.network
    norm = 2 * run.kernels.number * run.own_tokens * run.network.hidden
    depth = sum(layer(run, parts) + 2 * norm for depth in net.mtp for parts in depth)
    return norm + depth + len(net.mtp) * logits


def forward(run: Training) -> dict[str, float]:
    """Bytes of a pass for log-probs on the last rank, that keeps nothing for a backward."""
    rank = run.parallel.pipeline - 1
    largest = max(layer(run, parts) for parts in {x for s in run.network.stages for x in s})
    passing = {"activations": largest, "logits and log-probs": logits(run)[0]}
    return (
        states(run, rank) | gathered_weights(run) | passing | {"workspace": run.kernels.workspace}
    )


def gathered_weights(run: Training) -> dict[str, float]:
    """Whole layers in BF16 where weights are sharded: the one at work and the next."""
    if not run.states.fully:
        return {}
    layers = {(parts,) for stage in run.network.stages for parts in stage}
    largest = max(sum(of_layers(run.network, run.parallel, one)) for one in layers)
    return {"gathered layers": 2 * 2 * largest}


def of_rank(run: Training, rank: int) -> dict[str, float]:
    """Bytes by component on a pipeline rank, at their most."""
    parts = states(run, rank) | gathered_weights(run) | activations(run, rank)
    return parts | {"workspace": run.kernels.workspace}


def peak(run: Training) -> dict[str, float]:
    """Bytes by component on a GPU of the fullest pipeline rank."""
    ranks = (of_rank(run, rank) for rank in range(run.parallel.pipeline))
    return max(ranks, key=lambda parts: sum(parts.values()))

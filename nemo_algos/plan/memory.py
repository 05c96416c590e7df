"""The most bytes allocated on a GPU in a training step, by component."""

from collections.abc import Iterator

from nemo_algos.plan.activations import layer, logits, stage
from nemo_algos.plan.shapes import Training
from nemo_algos.plan.states import states


def schedule(run: Training, rank: int) -> Iterator[tuple[str, int]]:
    """Forwards F and backwards B of a pipeline rank, with their chunk, in Megatron-Core's order."""
    p, chunks = run.parallel, len(run.network.stages) // run.parallel.pipeline
    group, total = p.warmup_group or p.pipeline, run.micro_batches * chunks
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
    """Kept activations, and what the loss or a layer's recomputation takes at their peak."""
    p, net = run.parallel, run.network
    mine = net.stages[rank :: p.pipeline]
    kept, recomputed = zip(*(stage(run, layers) for layers in mine), strict=True)
    last, end = rank == p.pipeline - 1, len(mine) - 1
    most, later = logits(run) if last else (0.0, 0.0)
    predicted = sum(layer(run, x) + 8 * _hidden(run) for depth in net.mtp for x in depth) * last
    held, best = 0.0, (0.0, 0.0)
    for kind, chunk in schedule(run, rank):
        loss = last and chunk == end
        own = kept[chunk] + loss * (predicted + len(net.mtp) * later + 4 * _hidden(run))
        if kind == "F":
            held += own
            best = max(best, (held, most * loss), key=sum)
        else:
            best = max(best, (held, recomputed[chunk]), key=sum)
            held -= own
    return {"activations": best[0], "logits and recomputation": best[1]}


def _hidden(run: Training) -> float:
    return run.own_tokens * run.network.hidden


def peak(run: Training, rank: int) -> dict[str, float]:
    """Bytes by component on a pipeline rank, at their most."""
    return states(run, rank) | activations(run, rank) | {"workspace": run.kernels.workspace}

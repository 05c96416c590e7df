"""Layouts that fit and that `check` passes, and the cheapest change that makes a run fit."""

import itertools
from collections.abc import Callable, Iterator
from math import lcm

from omegaconf import DictConfig, OmegaConf

from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON, VLLM, layout
from nemo_algos.preflight.check.release import Release
from nemo_algos.preflight.check.rules.generation import splits_heads
from nemo_algos.preflight.plan.layouts import LIMIT, Change, Plan, of, with_keys
from nemo_algos.preflight.plan.nemo_rl_arguments import SCORED, SCORED_TOKENS, Setup

PACKING = "policy.sequence_packing.train_mb_tokens"
MICRO = "policy.train_micro_batch_size"
DIVISOR = "policy.make_sequence_length_divisible_by"
ENDS = [f"{MEGATRON}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last")]
KEYS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "expert": "expert_model_parallel_size",
    "context": "context_parallel_size",
}
Accepts = Callable[[Change], bool]


def checker(written: DictConfig, release: Release) -> Accepts:
    """Whether `check` finds no error with a change that it does not find without it."""

    def errors(change: Change) -> set[str]:
        config = written.copy()
        for path, value in change.items():
            OmegaConf.update(config, path, value, force_add=True)
        return {str(f) for f in judge(config, release)[1] if f.severity == "error"}

    known = errors({})
    return lambda change: errors(change) <= known


def _with(p: Plan, change: Change) -> Plan | None:
    """The plan with these keys set, where the sizes of its groups divide."""
    plain = with_keys(p.run.plain, change)
    run = Setup(plain, layout(plain), p.run.model, p.run.gpu)
    if possible(run):
        return of(run, p.tokens, change)
    return None


def _training_changes(p: Plan) -> Iterator[Change]:
    """From what costs nothing to what costs most."""
    run = p.run
    lay = p.run.layout
    model = p.run.model
    if lay.backend != "megatron":
        yield {f"{DTENSOR}.activation_checkpointing": True}
        yield {f"{DTENSOR}.tensor_parallel_size": 2 * lay.tensor}
        yield {f"{DTENSOR}.cpu_offload": True}
        return
    yield {"policy.logprob_chunk_size": 1024, f"{MEGATRON}.defer_fp32_logits": True}
    if lay.tensor > 1:
        yield {f"{MEGATRON}.sequence_parallel": True}
    if run["policy.sequence_packing.enabled"]:
        yield {PACKING: max(run[LIMIT], (run[PACKING] or 0) // 2)}
    else:
        yield {MICRO: max(1, run[MICRO] // 2)}
    yield {f"{MEGATRON}.activation_checkpointing": True}
    sizes = {"expert": lay.expert, "tensor": lay.tensor, "pipeline": lay.pipeline}
    for factor, (name, size) in itertools.product((2, 4, 8), sizes.items()):
        if name != "expert" or model.experts:
            yield resized(run, **{name: factor * size})
    yield resized(run, context=2 * lay.context)
    offload = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    yield {f"{MEGATRON}.optimizer.{k}": v for k, v in offload.items()}


def _scoring_changes(p: Plan) -> Iterator[Change]:
    run = p.run
    key = f"policy.{run.packing}.{SCORED_TOKENS}" if run.packing else SCORED
    least = run[LIMIT] if run.packing else 1
    size = (run[key] or 0) // 2
    while size >= least:
        yield {key: size}
        size //= 2
    yield from _training_changes(p)


def _generation_changes(p: Plan) -> Iterator[Change]:
    used = p.run[f"{VLLM}.gpu_memory_utilization"] or 0.9
    if used < 0.9:
        yield {f"{VLLM}.gpu_memory_utilization": 0.9}
    for factor in (2, 4, 8):
        yield {f"{VLLM}.tensor_parallel_size": factor * p.run.layout.generation_tensor}


def possible(run: Setup) -> bool:
    """Whether the sizes of the groups divide what they divide."""
    m = run.model
    p = run.layout
    heads = splits_heads(m, p.tensor) and splits_heads(m, p.generation_tensor)
    ranks = p.train_gpus % p.model_ranks == 0 and p.tensor <= p.gpus_per_node
    experts = not m.experts or (m.experts % p.expert == 0 and p.train_gpus % p.expert_ranks == 0)
    batch = p.data > 0 and run["policy.train_global_batch_size"] % p.data == 0
    engines = p.generation_gpus % (p.generation_tensor * p.generation_pipeline) == 0
    return heads and ranks and experts and batch and engines and p.pipeline <= len(m.layers)


PARTS = {
    "trains": _training_changes,
    "scores": _scoring_changes,
    "generates": _generation_changes,
}


def remedy(p: Plan, accepts: Accepts) -> Change | None:
    """The cheapest change that makes it fit; None where none is needed or none helps."""
    change: Change = {}
    for name, candidates in PARTS.items():
        if getattr(p, name):
            continue
        found = _cheapest(p, _fits(name), list(candidates(p)), accepts)
        if found is None:
            return None
        change |= found
    return change or None


def _fits(name: str) -> Callable[[Plan], bool]:
    """Whether this part of a plan fits, and what is on the host."""
    return lambda p: getattr(p, name) and p.hosts


def _cheapest(
    p: Plan, fits: Callable[[Plan], bool], candidates: list[Change], accepts: Accepts
) -> Change | None:
    """The single change that fits with the fastest step; else the first that do together.

    An engine that one node can hold does not span two.
    """

    def fitting(changes: list[Change]) -> Iterator[tuple[Plan, Change]]:
        for change in changes:
            other = _with(p, change)
            if other and fits(other) and accepts(change):
                yield other, change

    def cost(pair: tuple[Plan, Change]) -> tuple[bool, float]:
        lay = pair[0].run.layout
        return lay.generation_tensor > lay.gpus_per_node, pair[0].step_seconds

    alone = list(fitting(candidates))
    if alone:
        return min(alone, key=cost)[1]
    together = list(itertools.accumulate(candidates, lambda a, b: a | b))
    return next((change for _, change in fitting(together)), None)


def resized(run: Setup, **sizes: int) -> Change:
    """Groups of these sizes, and the keys that must follow them, where their values change."""
    was = run.layout
    now = was._replace(**sizes)
    wanted: Change = {}
    for name, size in sizes.items():
        wanted[f"{MEGATRON}.{KEYS[name]}"] = size
    if now.tensor != was.tensor:
        wanted[f"{MEGATRON}.sequence_parallel"] = now.tensor > 1
        wanted[SCORED] = run[MICRO] if now.tensor >= 4 else run[SCORED]
    if now.pipeline != was.pipeline:
        split = ends(len(run.model.layers), now.pipeline)
        wanted |= dict(zip(ENDS, split, strict=True))
    cut = (2 * now.context if now.context > 1 else 1) * now.tensor
    wanted[DIVISOR] = lcm(run[DIVISOR] or 1, cut)
    return {key: value for key, value in wanted.items() if run[key] != value}


def ends(layers: int, stages: int) -> tuple[int | None, int | None]:
    """Layers of the first and last pipeline stage, where they do not split evenly."""
    if layers % stages == 0:
        return None, None
    for middle in (-(-layers // stages), layers // stages):
        rest = layers - middle * (stages - 2)
        if rest >= 2:
            return -(-rest // 2), rest // 2
    return None, None


def layouts(p: Plan, nodes: int, accepts: Accepts, top: int) -> tuple[list[Plan], str]:
    """Megatron layouts on so many nodes that fit and pass `check`; or the reason for none.

    The fastest first, those that fit only by the middle of their range last. Generation stays as it
    is where its cache holds a sequence; else it is changed so that it does.
    """
    engine: Change = {}
    if not p.generates:
        cures = list(_generation_changes(p))
        engine = _cheapest(p, _fits("generates"), cures, accepts) or {}
    tried = []
    for change in _layouts(p, nodes):
        other = _with(p, change | engine)
        if other:
            tried.append(other)
    fitting = sorted((x for x in tried if not x.misfits), key=lambda x: (x.tight, x.step_seconds))
    found = list(itertools.islice((x for x in fitting if accepts(x.change)), top))
    return found, "" if found else _reason(tried, fitting)


def _layouts(p: Plan, nodes: int) -> Iterator[Change]:
    experts = (1, 2, 4, 8, 16, 32, 64) if p.run.model.experts else (1,)
    groups = itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8), experts)
    again = f"{MEGATRON}.activation_checkpointing"
    for (tensor, pipeline, context, expert), recomputed in itertools.product(groups, (False, True)):
        sizes = resized(p.run, tensor=tensor, pipeline=pipeline, context=context, expert=expert)
        more = {"cluster.num_nodes": nodes, again: recomputed}
        yield {k: v for k, v in more.items() if p.run[k] != v} | sizes


def _reason(tried: list[Plan], fitting: list[Plan]) -> str:
    if fitting:
        return "`check` refuses every layout that fits. Run it to see why."
    if not tried:
        return "no parallel sizes divide these GPUs, the heads and the batch."
    least = min(tried, key=lambda x: sum(x.training.values()))
    if least.trains and not least.generates:
        return (
            "an engine's KV cache cannot hold one sequence, with no TP of generation that divides "
            "the heads. Lower policy.max_total_sequence_length, or use a GPU with more memory."
        )
    needed = sum(least.training.values()) / 1e9
    return f"the smallest needs {needed:.0f} GB, but a GPU has {least.run.gpu.memory / 1e9:.0f} GB."

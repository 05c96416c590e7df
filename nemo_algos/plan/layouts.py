"""Whether a run fits its GPUs, what a step takes, and the cheapest change that makes it fit."""

import itertools
from collections.abc import Iterator, Mapping
from copy import deepcopy
from operator import attrgetter
from typing import Any, NamedTuple

from nemo_algos.config import at, put
from nemo_algos.plan import generation, memory, speed
from nemo_algos.plan.gpus import GPU
from nemo_algos.plan.nemo_rl_arguments import Setup, training
from nemo_algos.plan.parameters import whole
from nemo_algos.preflight.decoder import Model
from nemo_algos.preflight.layout import DTENSOR, MEGATRON, VLLM, layout

PACKING = "policy.sequence_packing.train_mb_tokens"
LIMIT, MICRO = "policy.max_total_sequence_length", "policy.train_micro_batch_size"
Change = dict[str, Any]
EXPLAINED = 0.01  # of a model's parameters: where more is missed the family is another


class Plan(NamedTuple):
    """Bytes on a GPU by component, and seconds by phase of a step with `tokens` a sequence."""

    run: Setup
    tokens: float
    training: dict[str, float]
    log_probs: dict[str, float]
    generation: dict[str, float]
    host: dict[str, float]
    cached_sequences: float
    phases: dict[str, float]

    @property
    def trains(self) -> bool:
        """Whether training fits the GPU."""
        return sum(self.training.values()) <= self.run.gpu.memory

    @property
    def generates(self) -> bool:
        """Whether an engine's cache holds one sequence of full length."""
        return self.cached_sequences >= 1

    @property
    def overlaps(self) -> bool:
        """Whether generation runs beside training."""
        return bool(self.run["grpo.async_grpo.enabled"])

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: the phases in turn, or generation beside the rest."""
        generation = self.phases["generation"]
        rest = sum(self.phases.values()) - generation
        return max(generation, rest) if self.overlaps else generation + rest

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.run["grpo.max_num_steps"]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the run."""
        return self.steps * self.step_seconds * self.run.layout.gpus / 3600

    def numbers(self) -> dict[str, Any]:
        """Everything, for scripts; FLOPs as the model needs them, without what is recomputed."""
        run, total = self.run, self.run.rollouts * self.tokens
        return {
            "layout": run.layout._asdict(),
            "gpu": run.gpu.name,
            "parameters": run.model.parameters,
            "active_parameters": run.model.active_parameters,
            "mean_tokens": self.tokens,
            "training_bytes": self.training,
            "log_prob_bytes": self.log_probs,
            "generation_bytes": self.generation,
            "host_bytes": self.host,
            "cached_sequences": self.cached_sequences,
            "fits": {"training": self.trains, "generation": self.generates},
            "seconds": self.phases,
            "step_seconds": self.step_seconds,
            "step_flops": 4 * total * speed.forward_flops(run, self.tokens),
            "step_tokens": total,
            "run_tokens": self.steps * total,
            "gpu_hours": self.gpu_hours,
        }


def plan(plain: Mapping[str, Any], model: Model, gpu: GPU, tokens: float | None = None) -> Plan:
    """The plan for sequences of `tokens` on average. Raises ValueError where none has so many."""
    run = Setup(plain, layout(plain), model, gpu)
    if abs(missed := 1 - whole(model) / model.parameters) > EXPLAINED:
        raise ValueError(
            f"{model.model_type}: the memory model does not explain {missed:.0%} of the model's "
            "parameters, so no figure of it would be right. Models of this family are not planned."
        )
    if tokens is not None and not 1 <= tokens <= run[LIMIT]:
        raise ValueError(f"--mean-tokens {tokens:g}: choose 1 to {run[LIMIT]}, the longest")
    return _of(run, tokens or speed.LENGTH * run[LIMIT])


def _of(run: Setup, mean: float) -> Plan:
    made, asleep = training(run), generation.sleeping(run)
    return Plan(
        run=run,
        tokens=mean,
        training=memory.peak(made) | asleep,
        log_probs=memory.forward(made) | asleep,
        generation=generation.generation(run),
        host=generation.on_host(run),
        cached_sequences=generation.cached_sequences(run, run[LIMIT]),
        phases=speed.phases(run, mean),
    )


def _with(p: Plan, change: Change) -> Plan | None:
    """The plan with these keys set, where the sizes of its groups divide."""
    plain = changed(p.run.plain, change)
    run = Setup(plain, layout(plain), p.run.model, p.run.gpu)
    return _of(run, p.tokens) if possible(run) else None


def changed(plain: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The config with these keys set."""
    out = deepcopy(dict(plain))
    for path, value in change.items():
        put(out, path, value)
    return out


def _training_changes(p: Plan) -> Iterator[Change]:
    """From what costs nothing to what costs most."""
    run, lay, model = p.run, p.run.layout, p.run.model
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
            yield {f"{MEGATRON}.{name}_model_parallel_size": factor * size}
    yield {f"{MEGATRON}.context_parallel_size": 2 * lay.context}
    offload = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    yield {f"{MEGATRON}.optimizer.{k}": v for k, v in offload.items()}


def _generation_changes(p: Plan) -> Iterator[Change]:
    used = p.run[f"{VLLM}.gpu_memory_utilization"] or 0.9
    if used < 0.9:
        yield {f"{VLLM}.gpu_memory_utilization": 0.9}
    for factor in (2, 4, 8):
        yield {f"{VLLM}.tensor_parallel_size": factor * p.run.layout.generation_tensor}


def possible(run: Setup) -> bool:
    """Whether the sizes of the groups divide what they divide."""
    m, p = run.model, run.layout
    copied = max(p.tensor, m.kv_heads) % min(p.tensor, m.kv_heads) == 0
    heads = m.num_attention_heads % p.tensor == 0 and copied
    ranks = p.train_gpus % p.model_ranks == 0 and p.tensor <= p.gpus_per_node
    experts = not m.experts or (m.experts % p.expert == 0 and p.train_gpus % p.expert_ranks == 0)
    batch = p.data > 0 and run["policy.train_global_batch_size"] % p.data == 0
    engines = p.generation_gpus % (p.generation_tensor * p.generation_pipeline) == 0
    return heads and ranks and experts and batch and engines and p.pipeline <= m.num_hidden_layers


def remedy(p: Plan) -> Change | None:
    """The cheapest change that makes it fit; None where none is needed or none helps."""
    change: Change = {}
    wanted = {"trains": _training_changes, "generates": _generation_changes}
    for name, candidates in wanted.items():
        if getattr(p, name):
            continue
        found = _cheapest(p, attrgetter(name), list(candidates(p)))
        if found is None:
            return None
        change |= found
    return change or None


def _cheapest(p: Plan, fits: Any, candidates: list[Change]) -> Change | None:
    """The single change that fits with the fastest step; else the first that do together."""

    def fitting(changes: list[Change]) -> Iterator[tuple[Plan, Change]]:
        for change in changes:
            if (other := _with(p, change)) and fits(other):
                yield other, change

    alone = list(fitting(candidates))
    if alone:
        return min(alone, key=lambda pair: pair[0].step_seconds)[1]
    together = list(itertools.accumulate(candidates, lambda a, b: a | b))
    return next((change for _, change in fitting(together)), None)


def layouts(p: Plan, nodes: int) -> list[Plan]:
    """Megatron layouts on so many nodes that fit, the fastest first; generation stays as it is."""
    experts = (1, 2, 4, 8, 16, 32, 64) if p.run.model.experts else (1,)
    sizes = itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8), experts, (False, True))
    found = []
    for tensor, pipeline, context, expert, recomputed in sizes:
        change = {
            "cluster.num_nodes": nodes,
            f"{MEGATRON}.tensor_model_parallel_size": tensor,
            f"{MEGATRON}.pipeline_model_parallel_size": pipeline,
            f"{MEGATRON}.context_parallel_size": context,
            f"{MEGATRON}.expert_model_parallel_size": expert,
            f"{MEGATRON}.sequence_parallel": tensor > 1,
            f"{MEGATRON}.activation_checkpointing": recomputed,
            f"{MEGATRON}.num_layers_in_first_pipeline_stage": None,
            f"{MEGATRON}.num_layers_in_last_pipeline_stage": None,
        }
        other = _with(p, change)
        if other and other.trains and other.generates:
            found.append(other)
    return sorted(found, key=lambda x: x.step_seconds)


def gpu_of(plain: Mapping[str, Any]) -> str:
    """H100; GB200 where NeMo-RL's own config is for nodes of four GPUs."""
    return "GB200" if "n4g" in str(at(plain, "nemo_rl.config")) else "H100"

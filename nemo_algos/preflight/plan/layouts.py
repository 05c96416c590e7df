"""Whether a run fits its GPUs, and what a step takes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.findings import at
from nemo_algos.preflight.check.decoder import Model
from nemo_algos.preflight.check.layout import layout
from nemo_algos.preflight.plan import memory, speed
from nemo_algos.preflight.plan.nemo_rl_arguments import GPU, Setup, scored_sequences, training
from nemo_algos.preflight.plan.workload import whole

LIMIT = "policy.max_total_sequence_length"
Change = dict[str, Any]
ENDS_OF_MEAN = (0.25, 1.0)  # of the longest sequence: where a mean that nobody knows may lie
EXPLAINED = 0.01  # of a model's parameters: where more is missed the family is another


@cache
def measured_errors() -> dict[str, dict[str, float]]:
    """Relative errors on those of Megatron-LM's tests that nobody saw while the model was written.

    benchmarks/plan_memory.py --write found them on that half of the cases.
    """
    return json.loads((Path(__file__).parent / "expected.json").read_text())


class Plan(NamedTuple):
    """Bytes on a GPU by component, and seconds by phase of a step with `tokens` a sequence.

    change: the keys that differ from the user's config.
    """

    run: Setup
    tokens: float
    training: dict[str, float]
    log_probs: dict[str, float]
    generation: dict[str, float]
    host: dict[str, float]
    cached_sequences: float
    phases: dict[str, float]
    change: Change

    @property
    def tight(self) -> bool:
        """Whether training fits by its prediction, and not by the top of its range."""
        most = sum(self.training.values()) / (1 - measured_errors()["peak"]["nine_of_ten"])
        return self.trains and most > self.run.gpu.memory

    @property
    def trains(self) -> bool:
        return sum(self.training.values()) <= self.run.gpu.memory

    @property
    def scores(self) -> bool:
        """Whether the pass for log-probs fits."""
        return sum(self.log_probs.values()) <= self.run.gpu.memory

    @property
    def generates(self) -> bool:
        """Whether an engine's cache holds one sequence of full length."""
        return self.cached_sequences >= 1

    @property
    def hosts(self) -> bool:
        """Whether a node's memory holds what is on the host."""
        return sum(self.host.values()) <= self.run.gpu.host

    @property
    def misfits(self) -> list[str]:
        """What does not fit the GPU, in words."""
        problems = [] if self.trains else ["training does not fit the GPU"]
        if not self.scores:
            problems.append("the pass for log-probs does not fit the GPU")
        if not self.generates:
            problems.append("the KV cache cannot hold one sequence of full length")
        if not self.hosts:
            problems.append("a node's memory cannot hold what is on the host")
        return problems

    @property
    def overlaps(self) -> bool:
        """Whether generation runs beside training."""
        return self.run.staleness > 0

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: the phases in turn, or generation beside the rest.

        A batch is begun when the weights `ahead` updates before its own arrive, and later ones are
        begun beside it, so that ahead + 1 steps last as long as its generation and training. Where
        a refit waits for what is being generated, no two batches are generated at once.
        """
        generation = self.phases["generation"]
        rest = sum(self.phases.values()) - generation
        ahead = self.run.staleness
        if self.run.drains:
            return max(generation / max(1, ahead), rest)
        return max((generation + rest) / (ahead + 1), rest)

    @property
    def steps(self) -> int:
        return self.run["grpo.max_num_steps"]

    @property
    def gpu_hours(self) -> float:
        return self.steps * self.step_seconds * self.run.layout.gpus / 3600

    def numbers(self) -> dict[str, Any]:
        """Everything, for scripts; FLOPs as the model needs them, without what is recomputed."""
        run = self.run
        total = self.run.rollouts * self.tokens
        return {
            "layout": run.layout._asdict(),
            "gpu": run.gpu.name,
            "parameters": run.model.parameters,
            "active_parameters": run.model.active_parameters,
            "mean_tokens": self.tokens,
            "longest_tokens": speed.longest(run, self.tokens),
            "training_bytes": self.training,
            "log_prob_bytes": self.log_probs,
            "generation_bytes": self.generation,
            "host_bytes": self.host,
            "cached_sequences": self.cached_sequences,
            "fits": {
                "training": self.trains,
                "log_probs": self.scores,
                "generation": self.generates,
                "host": self.hosts,
            },
            "tight": self.tight,
            "change": self.change,
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
    counted = whole(model) / model.parameters
    if abs(1 - counted) > EXPLAINED:
        raise ValueError(
            f"{model.model_type}: the memory model counts {counted:.0%} of the parameters, so its "
            "figures would be wrong. `plan` does not support this family."
        )
    if tokens is not None and not 1 <= tokens <= run[LIMIT]:
        raise ValueError(f"--mean-tokens: must be 1 to {run[LIMIT]}, got {tokens:g}")
    return of(run, tokens or speed.LENGTH * run[LIMIT])


def of(run: Setup, mean: float, change: Change | None = None) -> Plan:
    """The plan of a setup, for sequences of so many tokens on average."""
    made = training(run)
    scoring = replace(made, micro_batch=scored_sequences(run))
    asleep = memory.sleeping(run)
    away = {"optimizer": 0.0} if run[memory.LOGPROB_OFFLOADS] else {}
    return Plan(
        run=run,
        tokens=mean,
        training=memory.peak(made) | asleep,
        log_probs=memory.forward(scoring) | asleep | away,
        generation=memory.generation(run),
        host=memory.on_host(run),
        cached_sequences=memory.cached_sequences(run, run[LIMIT]),
        phases=speed.phases(run, mean),
        change=change or {},
    )


def both_ends(p: Plan) -> dict[float, float]:
    """Seconds of a step by tokens of its mean sequence: a quarter of the limit, and the limit."""
    means = [max(1.0, share * p.run[LIMIT]) for share in ENDS_OF_MEAN]
    return {mean: of(p.run, mean).step_seconds for mean in means}


def with_keys(plain: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The config with these keys set; it shares with the other the sections without them."""
    out = dict(plain)
    for path, value in change.items():
        *parents, key = path.split(".")
        section = out
        for name in parents:
            section[name] = dict(section.get(name, {}))
            section = section[name]
        section[key] = value
    return out


def gpu_of(plain: Mapping[str, Any]) -> str:
    """H100; GB200 where NeMo-RL's own config is for nodes of four GPUs."""
    if "n4g" in str(at(plain, "nemo_rl.config")):
        return "GB200"
    return "H100"

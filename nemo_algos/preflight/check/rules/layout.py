"""How training lies on the GPUs."""

import os
from collections.abc import Iterator
from math import gcd

from nemo_algos.findings import Finding, at
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON
from nemo_algos.preflight.check.rule import Preflight, divisors, error, errors, near, warning

RESOURCES = "policy.generation.colocated.resources"


def one_backend(run: Preflight) -> Iterator[Finding]:
    """Exactly one of Megatron and DTensor trains; keys of the other are ignored."""
    both = set()
    for name in ("megatron_cfg", "dtensor_cfg"):
        both.add(bool(run[f"policy.{name}.enabled"]))
    if len(both) == 1:
        what = "both Megatron and DTensor are" if both == {True} else "no training backend is"
        yield error(
            f"{MEGATRON}.enabled",
            f"{what} enabled. Enable exactly one: this or `{DTENSOR}.enabled`.",
        )
    idle = ("dtensor_cfg", "optimizer", "scheduler") if run.megatron else ("megatron_cfg",)
    for name in idle:
        section = (run.written.get("policy") or {}).get(name) or {}
        keys = [k for k in section if k != "enabled"] if isinstance(section, dict) else section
        if keys:
            trains = "Megatron" if run.megatron else "DTensor"
            own = "`policy.optimizer`, `policy.scheduler` and `policy.dtensor_cfg`"
            if run.megatron:
                own = f"`{run.section}{'' if name == 'dtensor_cfg' else f'.{name}'}`"
            yield warning(
                f"policy.{name}",
                f"{trains} trains and ignores this section: its settings are in {own}. Move your "
                "keys there, or remove them.",
            )


def generation_share(run: Preflight) -> Iterator[Finding]:
    """GPUs apart for generation leave some for training, in whole nodes where there are many."""
    a = run.layout
    if a.colocated:
        return
    if a.generation_gpus < 1 or a.train_gpus < 1:
        units = a.gpus_per_node if a.nodes == 1 else a.nodes
        most = f"Set it to at most {units - 1}" if units > 1 else "Use more GPUs"
        yield error(
            f"{RESOURCES}.{'gpus_per_node' if a.nodes == 1 else 'num_nodes'}",
            f"of {a.gpus} GPUs, {a.train_gpus} would train and {a.generation_gpus} generate. Each "
            f"needs at least one. {most}, or use smaller parallel sizes.",
        )
    if a.nodes > 1 and run[f"{RESOURCES}.gpus_per_node"] != a.gpus_per_node:
        yield error(
            f"{RESOURCES}.gpus_per_node",
            f"non-colocated generation takes whole nodes. Set it to {a.gpus_per_node}.",
        )


def train_ranks(run: Preflight) -> Iterator[Finding]:
    """A replica's GPUs divide those of training, and those of a copy of all experts do."""
    a = run.layout
    groups = ("tensor", "pipeline", "context")
    if a.train_gpus % a.model_ranks:
        group = next((g for g in groups if a.train_gpus % getattr(a, g)), "tensor")
        yield error(
            run.size_key(group),
            f"TP {a.tensor} x PP {a.pipeline} x CP {a.context} does not divide the {a.train_gpus} "
            f"training GPUs. {sizes_of(run, group)}",
        )
    if run.megatron and a.train_gpus % a.expert_ranks:
        yield error(
            run.size_key("expert"),
            f"EP {a.expert} x ETP {a.expert_tensor} x PP {a.pipeline} does not divide the "
            f"{a.train_gpus} training GPUs. {sizes_of(run, 'expert')}",
        )


def sizes_of(run: Preflight, group: str, *numbers: int) -> str:
    """The sizes of a parallel group that divide the training GPUs, beside the other groups.

    numbers: what of the model they must divide too.
    """
    a = run.layout
    size = getattr(run.layout, group)
    beside = (a.expert_ranks if group == "expert" else a.model_ranks) // size
    if a.train_gpus % beside:
        return "Change it and another parallel size, or `cluster.num_nodes`."
    if group == "tensor" and run.model:
        numbers += (run.model.attention.heads,)
    return f"Set it to {near(size, divisors(gcd(a.train_gpus // beside, *numbers)))}."


def tensor_parallel(run: Preflight) -> Iterator[Finding]:
    """Tensor parallelism splits attention heads, key-value heads and the vocabulary."""
    m = run.model
    if m is None:
        return
    tensor = run.layout.tensor
    groups = m.attention.groups
    if m.attention.heads % tensor:
        yield error(
            run.size_key("tensor"),
            f"the model's {m.attention.heads} attention heads do not divide over {tensor} "
            f"tensor-parallel ranks. {sizes_of(run, 'tensor', groups)}",
        )
    if (
        m
        and m.attention.groups % tensor
        and not (run.megatron and tensor % m.attention.groups == 0)
    ):
        also = "" if run.megatron else " Or train with Megatron, which copies them."
        yield error(
            run.size_key("tensor"),
            f"the model's {groups} key-value heads do not divide over {tensor} "
            f"tensor-parallel ranks. {sizes_of(run, 'tensor', groups)}{also}",
        )
    if m.vocab_size % tensor:
        then = (
            "and Megatron stops unless it is padded"
            if run.megatron
            else "so all log-probs are wrong"
        )
        say = warning if run.megatron else error
        yield say(
            run.size_key("tensor"),
            f"the model's vocabulary of {m.vocab_size} does not divide over {tensor} ranks, "
            f"{then}. {sizes_of(run, 'tensor', m.vocab_size)}",
        )


def layers(run: Preflight) -> Iterator[Finding]:
    """Pipeline stages have equal numbers of layers, and ranks equal numbers of experts."""
    stages = run.layout.pipeline
    ends = []
    for end in ("first", "last"):
        count = run[f"{MEGATRON}.num_layers_in_{end}_pipeline_stage"]
        if count:
            ends.append(count)
    if run.model and stages != 1:
        rest = len(run.model.layers) - sum(ends)
        middle = stages - len(ends)
        if rest < 0 or (rest % middle if middle > 0 else rest):
            cure = (
                sizes_of(run, "pipeline", rest) if not ends else "Choose a divisor of these layers."
            )
            yield error(
                run.size_key("pipeline"),
                f"{rest} layers do not divide evenly over {middle} pipeline stages. {cure} Or "
                "change num_layers_in_first/last_pipeline_stage.",
            )
    m = run.model
    parts = run.layout.expert
    if m and parts > 1 and (not m.experts or m.experts % parts):
        cure = sizes_of(run, "expert", m.experts) if m.experts else "Set it to 1."
        said = (
            f"the model's {m.experts} experts do not divide over {parts} expert-parallel ranks. "
            f"{cure}"
            if m.experts
            else f"the model has no experts. {cure}"
        )
        yield error(run.size_key("expert"), said)


def split_sequences(run: Preflight) -> Iterator[Finding]:
    """Sequences are split by tensor and by context parallelism, in whole parts."""
    a = run.layout
    sequence = f"{run.section}.sequence_parallel"
    mixture = run.model and run.model.experts
    packed = run["policy.sequence_packing.enabled"]
    yield from errors(
        (
            run.megatron and a.tensor == 1 and a.sequence_parallel,
            sequence,
            "Megatron refuses it without tensor parallelism. Set it to false.",
        ),
        (
            run.megatron and a.tensor > 1 and mixture and not a.sequence_parallel,
            sequence,
            "a mixture of experts with tensor parallelism needs it. Set it to true.",
        ),
        (
            run.megatron and a.context > 1 and not packed,
            "policy.sequence_packing.enabled",
            "Megatron's context parallelism needs packing. Set it to true.",
        ),
        (
            not run.megatron and a.context > 1 and packed,
            "policy.sequence_packing.enabled",
            "DTensor's context parallelism refuses packing. Set it to false.",
        ),
        (
            not run.megatron and a.context > 1 and a.tensor > 1 and a.sequence_parallel,
            sequence,
            "DTensor cannot combine it with context parallelism. Set it to false.",
        ),
    )
    path = "policy.make_sequence_length_divisible_by"
    split = a.tensor if a.sequence_parallel else 1
    needed = (2 * a.context if a.context > 1 else 1) * split
    if run.megatron and packed and run[path] % needed:
        yield error(
            path,
            f"{run[path]} is not a multiple of {needed} (2 x CP with context parallelism, times "
            f"TP with sequence parallelism). Set it to {-(-run[path] // needed) * needed}.",
        )


def tensor_accuracy(run: Preflight) -> Iterator[Finding]:
    """From TP 4 on, log-probs depend on the batch size."""
    sizes = run["policy.train_micro_batch_size"], run["policy.logprob_batch_size"]
    waived = os.environ.get("NRL_IGNORE_TP_ACCURACY_CHECK")
    if run.layout.tensor >= 4 and sizes[0] != sizes[1] and not waived:
        yield error(
            "policy.logprob_batch_size",
            f"{sizes[1]} differs from `policy.train_micro_batch_size: {sizes[0]}`. From TP 4 on, "
            f"NeMo-RL requires both to be equal. Set it to {sizes[0]}.",
        )


def fsdp(run: Preflight) -> Iterator[Finding]:
    """DTensor's hybrid sharding divides data parallelism; it cannot offload on one GPU."""
    copies = run[f"{DTENSOR}.dp_replicate_size"] or 1
    if not run.megatron and run.layout.data % copies:
        yield error(
            f"{DTENSOR}.dp_replicate_size",
            f"{copies} does not divide the {run.layout.data} data-parallel ranks. Set it to "
            f"{near(copies, divisors(run.layout.data))}.",
        )
    if not run.megatron and run.layout.train_gpus == 1 and run[f"{DTENSOR}.cpu_offload"]:
        yield error(f"{DTENSOR}.cpu_offload", "it needs more than one GPU. Set it to false.")


def crossed(run: Preflight) -> Iterator[Finding]:
    """A range that is written ends above its begin."""
    for section, keys in run.plain.items():
        if not isinstance(keys, dict) or section == "grpo":  # whose ranges are of advantages
            continue
        for low in (key for key in keys if key.endswith("_low")):
            high = f"{low.removesuffix('_low')}_high"
            ends = (keys[low], keys.get(high))
            if all(isinstance(end, int | float) for end in ends) and ends[0] >= ends[1]:
                written = at(run.written, f"{section}.{low}") is not None
                yield error(
                    f"{section}.{low if written else high}",
                    f"{high}: {ends[1]} must be above {low}: {ends[0]}. Change one of them.",
                )

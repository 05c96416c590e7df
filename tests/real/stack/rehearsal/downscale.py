"""The run's config as it fits this machine: each key that is changed, with its kind and reason."""

from collections.abc import Iterator
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.engines.nemo.derived_config import TRACE, TRACED, data_sets
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON, VLLM
from nemo_algos.preflight.check.rule import Preflight as Run

GROUP, MICRO, UPDATES, ANSWER = (
    4,
    2,
    4,
    32,
)  # at most: group, rows of a micro-batch, updates, tokens
PROMPT = 512  # tokens that the miniature reads of a prompt, at most
ALL = 1000  # prompts of a step, and more
MICRO_BATCHES = 2  # of an update on a rank, where the run has several
NO_ENGINE = "Transformer Engine, Apex and CUDA kernels need a GPU"
WHOLE_EXPERTS = "transformers' own code, which runs here, has each expert on every rank"
ALWAYS = ("transformer_impl", "async_save")  # also where the config does not have the key
ASYNC_SAVE = f"{MEGATRON}.checkpoint.async_save"  # v0.7.0 has no such key, and saves at once
MEGATRON_ON_A_CPU: dict[str, Any] = {
    f"{MEGATRON}.transformer_impl": "local",
    ASYNC_SAVE: False,
    f"{MEGATRON}.apply_rope_fusion": False,
    f"{MEGATRON}.bias_activation_fusion": False,
    f"{MEGATRON}.moe_permute_fusion": False,
    f"{MEGATRON}.gradient_accumulation_fusion": False,
    f"{MEGATRON}.moe_enable_deepep": False,
    f"{MEGATRON}.moe_token_dispatcher_type": "alltoall",
    f"{MEGATRON}.moe_shared_expert_overlap": False,
    f"{MEGATRON}.fine_grained_activation_offloading": False,
    f"{MEGATRON}.cuda_graph_impl": "none",
    f"{MEGATRON}.fp8_cfg.enabled": False,
    f"{MEGATRON}.num_layers_in_first_pipeline_stage": None,
    f"{MEGATRON}.num_layers_in_last_pipeline_stage": None,
    f"{MEGATRON}.mtp_num_layers": 0,
    f"{MEGATRON}.distributed_data_parallel_config.overlap_grad_reduce": False,
    f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather": False,
    f"{MEGATRON}.optimizer.use_distributed_optimizer": False,
    f"{MEGATRON}.optimizer.use_precision_aware_optimizer": False,
    f"{MEGATRON}.optimizer.optimizer_cpu_offload": False,
    f"{MEGATRON}.env_vars": None,
}
DTENSOR_ON_A_CPU: dict[str, Any] = {
    f"{DTENSOR}._v2": True,
    f"{DTENSOR}.cpu_offload": False,
    f"{DTENSOR}.lora_cfg.use_triton": False,
}
ENGINE_ON_A_CPU: dict[str, Any] = {
    f"{VLLM}.enforce_eager": True,
    f"{VLLM}.gpu_memory_utilization": 0.3,
    f"{VLLM}.kv_cache_dtype": "auto",
    f"{VLLM}.use_deep_gemm": False,
    f"{VLLM}.is_mx": False,
    f"{VLLM}.quantization_ignored_layer_kws": [],
    f"{VLLM}.enable_vllm_metrics_logger": False,
    "logger.monitor_gpus": False,
}


class Change(NamedTuple):
    """A key as it is rehearsed.

    kind: scaled (smaller, the same thing) | folded (a parallel size) | given up (not rehearsed).
    """

    path: str
    value: Any
    kind: str
    reason: str


def refusal(run: Run) -> str | None:
    """Why this run cannot be rehearsed on a CPU."""
    engine = run["policy.generation.backend"]
    if engine != "vllm":
        return f"`policy.generation.backend` is {engine}, and only vLLM runs on a CPU here"
    if run["policy.draft.enabled"]:
        return "`policy.draft` trains a draft model, which needs a GPU"
    if run["policy.quant_cfg"]:
        return "`policy.quant_cfg` quantises with ModelOpt, which needs a GPU"
    if run["policy.generation.refit_transport"]:
        return "`policy.generation.refit_transport` is a GPU's"
    if run["on_policy_distillation"]:
        return "teachers of `on_policy_distillation` are not folded"
    return None


def changes(run: Run, ranks: int, longest: int, folder: Path) -> list[Change]:
    """All of them. ranks: of training, at most; longest: prompt that must be whole, in tokens."""
    sizes = fold_sizes(run, ranks)
    parts = (
        layout(run, sizes),
        on_a_cpu(run),
        batch(run, sizes["data"]),
        lengths(run, min(longest + 1, PROMPT)),  # NeMo-RL cuts one of just the limit
        places(run, folder),
    )
    listed = [change for part in parts for change in part]
    return [c for c in listed if run[c.path] != c.value]


def fold_sizes(run: Run, ranks: int) -> dict[str, int]:
    """The parallel sizes of training here: those above 1 are 2, in this order, while ranks last."""
    lay = run.layout
    asked = {"tensor": lay.tensor, "pipeline": lay.pipeline, "context": lay.context}
    if not run.megatron:
        asked |= {"context": 1}
    sizes, left = {}, ranks
    for name, size in (asked | {"data": max(lay.data, lay.expert)}).items():
        sizes[name] = 2 if size > 1 and left >= 2 else 1
        left //= sizes[name]
    inside = sizes["tensor"] * sizes["context"] * sizes["data"]
    experts = run.megatron and lay.expert > 1 and inside >= 2
    return sizes | {"expert": 2 if experts else 1, "expert_tensor": 1}


def count_gpus(run: Run, sizes: dict[str, int]) -> int:
    """Of these sizes: a rank of training each, and one of an engine that has its own."""
    own = 0 if run.layout.colocated else 1
    return own + prod(sizes[name] for name in ("tensor", "pipeline", "context", "data"))


def layout(run: Run, sizes: dict[str, int]) -> Iterator[Change]:
    """Sizes of the groups, the engine's, and the machine's."""
    lay = run.layout
    section = MEGATRON if run.megatron else DTENSOR
    infix = "_model" if run.megatron else ""
    for name in ("tensor", "pipeline", "expert", "context", "expert_tensor"):
        whole = "" if name in ("context", "expert_tensor") else infix
        path, asked = f"{section}.{name}{whole}_parallel_size", getattr(lay, name)
        if asked > 1:
            kind = "folded" if sizes[name] > 1 else "given up"
            fits = run.megatron or name != "expert"
            reason = f"{asked} ranks do not fit here" if fits else WHOLE_EXPERTS
            yield Change(path, sizes[name], kind, reason)
    if lay.sequence_parallel and sizes["tensor"] == 1:
        yield Change(
            f"{section}.sequence_parallel", False, "given up", "it needs tensor parallelism"
        )
    for name in ("tensor", "pipeline", "expert"):
        if getattr(lay, f"generation_{name}") > 1:
            reason = "vLLM on a CPU runs as one process here"
            yield Change(f"{VLLM}.{name}_parallel_size", 1, "given up", reason)
    if not lay.colocated:
        resources = "policy.generation.colocated.resources"
        yield Change(f"{resources}.gpus_per_node", 1, "scaled", "one engine")
        yield Change(f"{resources}.num_nodes", None, "scaled", "one node")
    yield Change("cluster.num_nodes", 1, "scaled", "this machine is one node")
    reason = "ranks of training, and the engine"
    yield Change("cluster.gpus_per_node", count_gpus(run, sizes), "scaled", reason)
    if run["cluster.segment_size"] is not None:
        yield Change("cluster.segment_size", None, "given up", "there is no NVLink")


def on_a_cpu(run: Run) -> Iterator[Change]:
    """What needs a GPU, where the config has it on."""
    backend = MEGATRON_ON_A_CPU if run.megatron else DTENSOR_ON_A_CPU
    for path, value in {**backend, **ENGINE_ON_A_CPU}.items():
        if path == ASYNC_SAVE and path not in run.nemo_rl.schema:
            continue
        if path.endswith(ALWAYS) or run[path] is not None:
            yield Change(path, value, "given up", NO_ENGINE)
    if run[f"{VLLM}.precision"] not in ("float32", "bfloat16", None):
        precision = run["policy.precision"]
        yield Change(f"{VLLM}.precision", precision, "given up", "FP8 needs a GPU")
    if run["policy.router_replay.enabled"]:
        reason = "vLLM on a CPU records no tokens' experts"
        yield Change("policy.router_replay.enabled", False, "given up", reason)
    if run["policy.generation.vllm_kwargs"]:
        reason = "the engine's own options are for a GPU"
        yield Change("policy.generation.vllm_kwargs", {}, "given up", reason)
    if (run[f"{DTENSOR}.automodel_kwargs"] or {}) != {} and not run.megatron:
        reason = "its layers and dispatchers are for a GPU: transformers' own code runs"
        yield Change(f"{DTENSOR}.automodel_kwargs", {"force_hf": True}, "given up", reason)
    if run["policy.hf_config_overrides"]:
        reason = "the miniature's config.json has them"
        yield Change("policy.hf_config_overrides", {}, "scaled", reason)


def batch(run: Run, data: int) -> Iterator[Change]:
    """Prompts, group and batches: updates per batch and micro-batches per update in proportion."""
    group = min(GROUP, run["grpo.num_generations_per_prompt"])
    micro = min(MICRO, run["policy.train_micro_batch_size"])
    rows = run["policy.train_global_batch_size"]
    updates = min(UPDATES, max(1, run.rollouts // rows))
    several = rows // (max(1, run.layout.data) * run["policy.train_micro_batch_size"]) > 1
    size = data * micro * (MICRO_BATCHES if several else 1)
    size *= group // gcd(group, size * updates)
    prompts = updates * size // group
    if prompts < 2:
        size, prompts = size * 2, prompts * 2
    scaled = {
        "grpo.num_prompts_per_step": prompts,
        "grpo.num_generations_per_prompt": group,
        "policy.train_global_batch_size": size,
        "policy.train_micro_batch_size": micro,
        "policy.logprob_batch_size": micro,
        "policy.generation_batch_size": prompts * group,
        "grpo.max_val_samples": min(4, run["grpo.max_val_samples"] or 4),
        "grpo.val_batch_size": min(4, run["grpo.val_batch_size"] or 4),
    }
    if run["grpo.val_period"]:
        scaled["grpo.val_period"] = 1
    if run["data.num_prompts_per_dataloader"] is not None:
        scaled["data.num_prompts_per_dataloader"] = 1
    if run.controlled:
        chunk = min(run.chunk, prompts)
        scaled |= {"async_rl.min_groups_for_streaming_train": chunk}
        scaled |= {
            f"async_rl.{k}": 2 * prompts for k in ("max_inflight_prompts", "max_buffered_rollouts")
        }
    for path, value in scaled.items():
        if run[path] is not None:
            reason = (
                f"{updates} updates a batch, as far as 4 go" if "global" in path else "a small step"
            )
            yield Change(path, value, "scaled", reason)


def lengths(run: Run, prompt: int) -> Iterator[Change]:
    """Tokens of a prompt and of a response; what counts tokens follows."""
    divisor = run["policy.make_sequence_length_divisible_by"] or 1
    unit = divisor * 2 * max(1, run.layout.context) if divisor < 64 else divisor
    total = -(-(prompt + ANSWER) // unit) * unit
    micro = min(MICRO, run["policy.train_micro_batch_size"])
    scaled = {
        "policy.max_total_sequence_length": total,
        "policy.generation.max_new_tokens": ANSWER,
        f"{VLLM}.max_model_len": total,
        "data.max_input_seq_length": prompt,
    }
    for kind in ("sequence_packing", "dynamic_batching"):
        if run[f"policy.{kind}"]:
            scaled |= {f"policy.{kind}.train_mb_tokens": total * micro}
            scaled |= {f"policy.{kind}.logprob_mb_tokens": total * micro}
    for path, value in scaled.items():
        yield Change(path, value, "scaled", "lengths are judged on the real rows, above")
    shaping = "grpo.reward_shaping"
    if run[f"{shaping}.enabled"] and run[f"{shaping}.max_response_length"] is not None:
        yield Change(f"{shaping}.max_response_length", ANSWER, "scaled", "answers are cut")
        yield Change(f"{shaping}.overlong_buffer_length", ANSWER // 4, "scaled", "answers are cut")


def places(run: Run, folder: Path) -> Iterator[Change]:
    """Folders, models and trackers; an environment has one process of each kind."""
    for name in dict.fromkeys(one.get("env_name") for one in data_sets(run["data"])):
        section = (run["env"] or {}).get(name)
        for key in {"workers", "num_workers"} & {*(section if isinstance(section, dict) else ())}:
            yield Change(f"env.{name}.{key}", 1, "scaled", "a small step has few responses")
    for path, name in {"checkpointing.checkpoint_dir": "results", "logger.log_dir": "logs"}.items():
        yield Change(
            path, str(folder / name), "scaled", "a rehearsal leaves nothing in your folders"
        )
    yield Change(
        "policy.model_name", str(folder / "model"), "scaled", "a miniature, random weights"
    )
    yield Change("logger.tensorboard_enabled", True, "scaled", "the rehearsal reads it")
    yield Change(TRACE, 1, "scaled", "the rehearsal reads it")
    if run.controlled:  # which logs no responses otherwise
        yield Change(TRACED, ALL, "scaled", "the rehearsal reads it")
    yield Change("checkpointing.save_period", 1, "scaled", "each step is saved")
    yield Change("checkpointing.checkpoint_must_save_by", None, "scaled", "tried apart")

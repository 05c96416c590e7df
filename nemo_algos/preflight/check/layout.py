"""How a run lies on its GPUs: NeMo-RL's config as numbers, of training and of generation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.findings import at
from nemo_algos.preflight.check.decoder import Model

MEGATRON = "policy.megatron_cfg"
DTENSOR = "policy.dtensor_cfg"
VLLM = "policy.generation.vllm_cfg"
MCORE = "policy.generation.mcore_generation_config"
SINGLE_CONTROLLER = "async_rl"  # its section, which every trainer but it leaves out or null


class Layout(NamedTuple):
    """Sizes of the parallel groups.

    Megatron: a parameter outside experts lies on TP x PP GPUs, an expert's on ETP x EP x PP.
    DTensor shards over all of training (FSDP).
    """

    backend: str  # megatron | dtensor
    nodes: int
    gpus_per_node: int
    train_gpus: int
    generation_gpus: int
    colocated: bool
    tensor: int
    pipeline: int
    context: int
    expert: int
    expert_tensor: int
    sequence_parallel: bool
    generation_tensor: int
    generation_pipeline: int
    generation_expert: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def model_ranks(self) -> int:
        """GPUs of one replica of the model in training."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Data-parallel size of training, rounded down."""
        return self.train_gpus // self.model_ranks

    @property
    def expert_ranks(self) -> int:
        """GPUs of one copy of all experts."""
        return self.expert * self.expert_tensor * self.pipeline

    @property
    def generation_replicas(self) -> int:
        """Engines that generate side by side, rounded down."""
        return self.generation_gpus // (self.generation_tensor * self.generation_pipeline)


@dataclass(frozen=True)
class Run:
    """A resolved NeMo-RL config, `run["cluster.num_nodes"]`, and what follows from it."""

    plain: Mapping[str, Any]
    layout: Layout
    model: Model | None  # where it is known

    def __getitem__(self, path: str) -> Any:
        return at(self.plain, path)

    @property
    def section(self) -> str:
        """The path of the backend that trains."""
        return f"policy.{self.layout.backend}_cfg"

    @property
    def adapters(self) -> str:
        """The path of its LoRA adapters."""
        if self.layout.backend == "megatron":
            return f"{MEGATRON}.peft"
        return f"{DTENSOR}.lora_cfg"

    @property
    def rollouts(self) -> int:
        """Sequences per step."""
        return self["grpo.num_prompts_per_step"] * self["grpo.num_generations_per_prompt"]

    @property
    def oversampling(self) -> float:
        """Prompts sampled for each that a step trains on: dynamic sampling keeps a part of them."""
        if self["grpo.use_dynamic_sampling"]:
            return self["grpo.batch_multiplier"] or 1
        return 1

    @property
    def controlled(self) -> bool:
        """Whether the single controller trains: its base configs alone have the section."""
        return self["async_rl"] is not None

    @property
    def sampler(self) -> str:
        """Which groups the single controller takes next."""
        found = self["async_rl.sampler.name"]
        return "in_order" if found is None else str(found)

    @property
    def chunk(self) -> int:
        """Groups that the single controller trains on at once, at least."""
        found = self["async_rl.min_groups_for_streaming_train"]
        return 32 if found is None else found

    @property
    def staleness(self) -> int:
        """How many updates older than the policy that is trained a sampler may be."""
        if self.controlled:
            key = (
                "max_lookahead_versions" if self.sampler == "in_order" else "max_staleness_versions"
            )
            found = self[f"async_rl.sampler.{key}"]
        elif self["grpo.async_grpo.enabled"]:
            found = self["grpo.async_grpo.max_trajectory_age_steps"]
        else:
            return 0
        return 1 if found is None else found

    @property
    def drains(self) -> bool:
        """Whether a refit waits until all responses that are being generated have ended."""
        in_flight = self.controlled or self["grpo.async_grpo.in_flight_weight_updates"]
        return self.staleness > 0 and not in_flight

    @property
    def bypass_mode(self) -> bool:
        """Whether the old log-probs are the sampler's, and a step has no forward for them."""
        return CorrectionConfig(**self["rollout_correction"] or {}).bypass_mode

    @property
    def packing(self) -> str | None:
        """What fills micro batches by tokens: sequence_packing, dynamic_batching, or nothing."""
        names = ("sequence_packing", "dynamic_batching")
        return next((n for n in names if self[f"policy.{n}.enabled"]), None)


def layout(plain: Mapping[str, Any]) -> Layout:
    megatron = bool(at(plain, f"{MEGATRON}.enabled"))
    section = at(plain, MEGATRON if megatron else DTENSOR) or {}
    name = "{}_model_parallel_size" if megatron else "{}_parallel_size"
    nodes = at(plain, "cluster.num_nodes")
    per_node = at(plain, "cluster.gpus_per_node")
    colocated = at(plain, "policy.generation.colocated.enabled") is not False
    # as NeMo-RL's grpo.setup divides them
    shared = nodes - _teacher_nodes(plain)
    train = generation = shared * per_node
    resources = at(plain, "policy.generation.colocated.resources") or {}
    own = resources.get("gpus_per_node") or 0
    if not colocated and shared == 1:
        train = per_node - own
        generation = own
    elif not colocated:
        apart = resources.get("num_nodes") or 0
        train = (shared - apart) * per_node
        generation = apart * (own or per_node)
    inside = at(plain, "policy.generation.backend") == "megatron"
    engine = at(plain, MCORE if inside else VLLM) or {}
    size = "{}_model_parallel_size" if inside else "{}_parallel_size"
    return Layout(
        backend="megatron" if megatron else "dtensor",
        nodes=nodes,
        gpus_per_node=per_node,
        train_gpus=train,
        generation_gpus=generation,
        colocated=colocated,
        tensor=section.get(name.format("tensor")) or 1,
        pipeline=section.get("pipeline_model_parallel_size") or 1,
        context=section.get("context_parallel_size") or 1,
        expert=section.get(name.format("expert")) or 1,
        expert_tensor=section.get("expert_tensor_parallel_size") or 1,
        sequence_parallel=bool(section.get("sequence_parallel")),
        generation_tensor=engine.get(size.format("tensor")) or 1,
        generation_pipeline=engine.get(size.format("pipeline")) or 1,
        generation_expert=engine.get(size.format("expert")) or 1,
    )


def _teacher_nodes(plain: Mapping[str, Any]) -> int:
    """Nodes that teachers have to themselves, one set for each checkpoint."""
    section = "on_policy_distillation"
    apart = f"{section}.non_colocated_teachers"
    teachers = at(plain, f"{section}.teacher_model_by_agent_name")
    enabled = (at(plain, f"{path}.enabled") is True for path in (section, apart))
    if not all(enabled) or not isinstance(teachers, Mapping):
        return 0
    shared = at(plain, f"{section}.deduplicate_shared_teacher_checkpoints") is not False
    names = list(teachers)
    if shared:
        first: dict[str, str] = {}  # by checkpoint, its first teacher
        for name, model in teachers.items():
            first.setdefault(str(model), name)
        names = list(first.values())
    usual = at(plain, f"{apart}.default_teacher_cfg.num_nodes") or 1
    total = 0
    for name in names:
        nodes = at(plain, f"{apart}.teacher_overrides.{name}.num_nodes") or usual
        if not isinstance(nodes, int):
            return 0
        total += nodes
    return total

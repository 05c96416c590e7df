"""The embedded engine's config: NeMo-RL's sections and key names wherever both have the thing."""

from typing import Any, Literal

from pydantic import Field, field_validator

from nemo_algos.algorithms.riders.correction import CorrectionConfig
from nemo_algos.algorithms.riders.loss_config import LossConfig, MismatchConfig
from nemo_algos.config import Section
from nemo_algos.engines.data.schema import DataSection

TINY, TINY_MOE = "countdown-tiny", "countdown-tiny-moe"


class GRPOSection(Section):
    """Rollout batches.

    num_update_epochs (ours): passes over each batch; updates = epochs * batch / global batch.
    val_period: steps between evaluations, 0: none; once stop_at_validation_metric is at its
    threshold, training ends.
    """

    num_prompts_per_step: int = Field(gt=0)
    num_generations_per_prompt: int = Field(gt=0)
    max_num_steps: int = Field(gt=0)
    num_update_epochs: int = Field(default=1, gt=0)
    seed: int = Field(default=42, ge=0)
    val_samples_per_prompt: int = Field(default=64, ge=0)
    max_val_samples: int = Field(default=128, gt=0)
    val_period: int = Field(default=0, ge=0)
    val_at_start: bool = True
    val_at_end: bool = True
    stop_at_validation_metric: str | None = None
    stop_at_validation_threshold: float | None = None


class Component(Section):
    """A torch class by its full name, and its arguments."""

    name: str
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Milestones(Section):
    """Steps at which the next scheduler of the list takes over."""

    milestones: list[int]


class PlantedSection(Section):
    """What makes a countdown model's sampler another than its trainer, for experiments.

    noise: mean |log-ratio| of the sampled tokens, nats, by noise in the weights; fp8: linear layers
    in e4m3; stale_updates: weights of so many optimizer updates ago; route_flips: share of tokens,
    in each layer, one of whose two experts gives way to the third.
    """

    noise: float = Field(default=0.0, ge=0)
    fp8: bool = False
    stale_updates: int = Field(default=0, ge=0)
    route_flips: float = Field(default=0.0, ge=0, le=1)


class GenerationSection(Section):
    """Sampling. top_p: in evaluation only; planted: in training only."""

    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    planted: PlantedSection | None = None


class TokenizerSection(Section):
    """Where it is not the model's own: name; Jinja chat template; pad token."""

    name: str | None = None
    chat_template: str | None = None
    pad_token: str | None = None


class DynamicBatching(Section):
    """Micro-batches of at most train_mb_tokens tokens (prompt, response and padding)."""

    enabled: bool = False
    train_mb_tokens: int = Field(default=4096, gt=0)


class LoraSection(Section):
    """Adapters of rank dim. dropout: none, it would make the ratio differ from 1 by itself.

    match_all_linear: every linear layer but the output layer; else target_modules, or all without
    exclude_modules (names, * stands for anything).
    """

    enabled: bool = False
    target_modules: list[str] = Field(default_factory=list)
    exclude_modules: list[str] = Field(default_factory=list)
    match_all_linear: bool = True
    dim: int = Field(default=8, gt=0)
    alpha: int = Field(default=32, gt=0)
    dropout: float = Field(default=0.0, ge=0, le=0)
    lora_A_init: Literal["xavier", "uniform"] = "xavier"


class DTensorSection(Section):
    """activation_checkpointing: recompute activations in the backward pass."""

    activation_checkpointing: bool = False
    lora_cfg: LoraSection = LoraSection()


class RouterReplaySection(Section):
    """The trainer sends each token to the experts that the sampler has sent it to."""

    enabled: bool = False


class Shape(Section):
    """Sizes of countdown-tiny (113,856 parameters); vLLM on a CPU takes heads of 32 and more: 2.

    experts: 1 is an MLP; of more, two of `hidden` each take every token.
    """

    width: int = Field(default=64, gt=0)
    layers: int = Field(default=2, gt=0)
    heads: int = Field(default=4, gt=0)
    hidden: int = Field(default=192, gt=0)
    experts: int = Field(default=1, gt=0)


SHAPES = {TINY: Shape(), TINY_MOE: Shape(hidden=48, experts=8)}


class PolicySection(Section):
    """The model and its optimizer. device, threads, shape are ours; auto: see hardware.py.

    model_name: countdown-tiny, countdown-tiny-moe (eight experts), or a causal LM of transformers:
    hub name, directory, .gguf file.
    """

    model_name: str
    shape: Shape | None = None
    tokenizer: TokenizerSection = TokenizerSection()
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    train_global_batch_size: int = Field(gt=0)
    train_micro_batch_size: int = Field(gt=0)
    generation_batch_size: int = Field(default=64, gt=0)
    dynamic_batching: DynamicBatching = DynamicBatching()
    dtensor_cfg: DTensorSection = DTensorSection()
    max_grad_norm: float = Field(default=1.0, gt=0)
    optimizer: Component
    scheduler: list[Component | Milestones] = Field(default_factory=list)
    generation: GenerationSection
    router_replay: RouterReplaySection = RouterReplaySection()
    device: Literal["cpu", "cuda", "mps", "auto"] = "auto"
    threads: int | None = Field(default=None, gt=0)


class Project(Section):
    """Of trackio; name: of the run, else its folder's."""

    project: str = "nemo-algos"
    name: str | None = None


class Wandb(Project):
    """Arguments of wandb.init."""

    entity: str | None = None


class MLflow(Section):
    """tracking_uri: else $MLFLOW_TRACKING_URI, else MLflow's own."""

    experiment_name: str = "nemo-algos"
    run_name: str | None = None
    tracking_uri: str | None = None


class LoggerSection(Section):
    """Where a run's folder `exp_NNN` is made, and who else is told.

    num_val_samples_to_print: responses of each evaluation, the better and the worse ones.
    trackio is ours, and so is trace_period: tokens of the first traced_prompts prompts go to
    trace.jsonl at the first, the last and every trace_period-th step; 0: never.
    """

    log_dir: str
    num_val_samples_to_print: int = Field(default=2, ge=0)
    tensorboard_enabled: bool = True
    wandb_enabled: bool = False
    wandb: Wandb = Wandb()
    mlflow_enabled: bool = False
    mlflow: MLflow = MLflow()
    trackio_enabled: bool = False
    trackio: Project = Project()
    trace_period: int = Field(default=20, ge=0)
    traced_prompts: int = Field(default=2, gt=0)


class CheckpointSection(Section):
    """Atomic checkpoints in the run's folder every save_period steps, and before evaluations.

    The newest is kept, and the keep_top_k best by metric_name, `val:NAME` or `train:NAME`; without
    one the keep_top_k newest; null: all.
    """

    enabled: bool = True
    save_period: int = Field(default=20, gt=0)
    keep_top_k: int | None = Field(default=2, gt=0)
    metric_name: str | None = Field(default=None)
    higher_is_better: bool = True


class LocalConfig(Section):
    """The whole file; preflight.py has what must hold between keys, and of their files."""

    engine: Literal["local"] = "local"
    method: dict[str, Any]
    grpo: GRPOSection
    policy: PolicySection
    loss_fn: LossConfig = LossConfig()
    rollout_correction: CorrectionConfig = CorrectionConfig()
    mismatch: MismatchConfig = MismatchConfig()
    data: DataSection = DataSection()
    logger: LoggerSection
    checkpointing: CheckpointSection = CheckpointSection()

    @field_validator("engine", mode="before")
    @classmethod
    def _is_one(cls, engine: Any) -> Any:
        if engine not in ("local", "nemo_rl"):
            raise ValueError(f"there is no engine {engine!r}: set local or nemo_rl")
        return engine

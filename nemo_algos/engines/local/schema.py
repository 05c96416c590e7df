"""The embedded engine's config: NeMo-RL's sections and key names wherever both have the thing."""

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from nemo_algos.algorithms.riders.correction import CorrectionConfig
from nemo_algos.algorithms.riders.loss_config import LossConfig, MismatchConfig
from nemo_algos.algorithms.riders.old_policy import OldPolicy
from nemo_algos.config import Section
from nemo_algos.engines.data.schema import DataSection

TINY, TINY_MOE = "countdown-tiny", "countdown-tiny-moe"
Emulated = Literal["fp8_blockwise", "fp8_current", "mxfp8", "nvfp4"]
EMULATED = get_args(Emulated)  # the recipes of low_precision.py


class GRPOSection(Section):
    """Rollout batches and evaluations."""

    num_prompts_per_step: int = Field(gt=0)
    """Prompts of a rollout batch."""
    num_generations_per_prompt: int = Field(gt=0)
    """Responses to each prompt: the group that advantages compare."""
    max_num_steps: int = Field(gt=0)
    """Rollout batches of the run."""
    num_update_epochs: int = Field(default=1, gt=0)
    """Passes over each batch (ours); updates = epochs * batch / global batch."""
    seed: int = Field(default=42, ge=0)
    val_samples_per_prompt: int = Field(default=64, ge=0)
    """Responses to each prompt of an evaluation; 0: no evaluation."""
    max_val_samples: int = Field(default=128, gt=0)
    """Prompts of an evaluation."""
    val_period: int = Field(default=0, ge=0)
    """Steps between evaluations; 0: none."""
    val_at_start: bool = True
    val_at_end: bool = True
    stop_at_validation_metric: str | None = None
    """Training ends once this metric of an evaluation is at its threshold."""
    stop_at_validation_threshold: float | None = None


class TorchClass(Section):
    """A torch class by its full name, and its arguments."""

    name: str
    """Such as torch.optim.AdamW."""
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Milestones(Section):
    """An entry of policy.scheduler between the schedulers of the list."""

    milestones: list[int]
    """Steps at which the next scheduler of the list takes over."""


class PlantedSection(Section):
    """What makes a countdown model's sampler another than its trainer, for experiments."""

    noise: float = Field(default=0.0, ge=0)
    """Mean |log-ratio| of the sampled tokens, nats, by noise in the weights."""
    fp8: bool = False
    """Linear layers in e4m3."""
    stale_updates: int = Field(default=0, ge=0)
    """Weights of so many optimizer updates ago."""
    route_flips: float = Field(default=0.0, ge=0, le=1)
    """Share of tokens, in each layer, one of whose two experts gives way to the third."""


class GenerationSection(Section):
    """Sampling."""

    max_new_tokens: int = Field(gt=0)
    """Tokens at which a response is cut."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the fewest likeliest tokens that have this probability together."""
    top_k: int | None = Field(default=None, gt=0)
    """Draw from the likeliest so many."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Draw from tokens with at least this share of the likeliest one's probability."""
    support_replay: bool = False
    """The trainer's log-probs are renormalised over the tokens that these filters kept."""
    planted: PlantedSection | None = None
    """In training only."""

    @property
    def filters(self) -> dict[str, Any]:
        """What `core.support.support` takes; empty where every token is kept."""
        return self.model_dump(include={"top_p", "top_k", "min_p"}, exclude_defaults=True)


class TokenizerSection(Section):
    """Where it is not the model's own."""

    name: str | None = None
    chat_template: str | None = None
    """Jinja."""
    pad_token: str | None = None


class DynamicBatching(Section):
    """Micro-batches by tokens in place of train_micro_batch_size."""

    enabled: bool = False
    train_mb_tokens: int = Field(default=4096, gt=0)
    """At most so many tokens of a micro-batch: prompt, response and padding."""


class LoraSection(Section):
    """Adapters of linear layers."""

    enabled: bool = False
    target_modules: list[str] = Field(default_factory=list)
    """Names of layers; * stands for anything."""
    exclude_modules: list[str] = Field(default_factory=list)
    """All layers without these."""
    match_all_linear: bool = True
    """Every linear layer but the output layer."""
    dim: int = Field(default=8, gt=0)
    """The adapters' rank."""
    alpha: int = Field(default=32, gt=0)
    dropout: float = Field(default=0.0, ge=0, le=0)
    """None: it would make the ratio differ from 1 by itself."""
    lora_A_init: Literal["xavier", "uniform"] = "xavier"


class DTensorSection(Section):
    """What NeMo-RL has in this section too."""

    activation_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    lora_cfg: LoraSection = LoraSection()


class RouterReplaySection(Section):
    """Replay of a mixture's routes."""

    enabled: bool = False
    """The trainer sends each token to the experts that the sampler has sent it to."""


class Shape(Section):
    """Sizes of countdown-tiny (113,856 parameters)."""

    width: int = Field(default=64, gt=0)
    layers: int = Field(default=2, gt=0)
    heads: int = Field(default=4, gt=0)
    """vLLM on a CPU takes heads of 32 numbers and more: 2."""
    hidden: int = Field(default=192, gt=0)
    experts: int = Field(default=1, gt=0)
    """1 is an MLP; of more, two of `hidden` each take every token."""


SHAPES = {TINY: Shape(), TINY_MOE: Shape(hidden=48, experts=8)}


class TaughtSection(Section):
    """How a countdown model is taught before it trains."""

    seed: int = Field(default=0, ge=0)
    """Of its weights and lessons: each is another base model."""
    steps: int | None = Field(default=None, gt=0)
    """Of 64 right responses; unset: 700."""


class PolicySection(Section):
    """The model and its optimizer."""

    model_name: str
    """countdown-tiny, countdown-tiny-moe (eight experts), or a causal LM of transformers:
    hub name, directory, .gguf file."""
    shape: Shape | None = None
    """Of countdown-tiny (ours)."""
    taught: TaughtSection = TaughtSection()
    """Of a countdown model (ours)."""
    tokenizer: TokenizerSection = TokenizerSection()
    precision: Literal["auto", "float32", "bfloat16", Emulated] = "float32"
    """Of the products; fp8_blockwise to nvfp4: Transformer Engine's recipes, emulated."""
    train_global_batch_size: int = Field(gt=0)
    """Responses of an optimizer update."""
    train_micro_batch_size: int = Field(gt=0)
    """Responses of a forward and backward pass."""
    generation_batch_size: int = Field(default=64, gt=0)
    """Responses that are sampled at once."""
    dynamic_batching: DynamicBatching = DynamicBatching()
    dtensor_cfg: DTensorSection = DTensorSection()
    max_grad_norm: float = Field(default=1.0, gt=0)
    optimizer: TorchClass
    scheduler: list[TorchClass | Milestones] = Field(default_factory=list)
    """Schedulers in turn, with the milestones at which the next takes over."""
    generation: GenerationSection
    router_replay: RouterReplaySection = RouterReplaySection()
    device: Literal["cpu", "cuda", "mps", "auto"] = "auto"
    """Ours; auto: see hardware.py."""
    threads: int | None = Field(default=None, gt=0)
    """Of the CPU (ours)."""

    @property
    def own_sampler(self) -> bool:
        """Whether a countdown model's rollouts come from another model than the one that trains."""
        emulated = self.model_name in SHAPES and self.precision in EMULATED
        return emulated or self.generation.planted is not None


class Project(Section):
    """Of trackio."""

    project: str = "nemo-algos"
    name: str | None = None
    """Of the run, else its folder's."""


class Wandb(Project):
    """Arguments of wandb.init."""

    entity: str | None = None


class MLflow(Section):
    """A run in MLflow."""

    experiment_name: str = "nemo-algos"
    run_name: str | None = None
    tracking_uri: str | None = None
    """Else $MLFLOW_TRACKING_URI, else MLflow's own."""


class LoggerSection(Section):
    """Where a run's folder is made, and who else is told."""

    log_dir: str
    """The folder of the runs' folders `exp_NNN`."""
    num_val_samples_to_print: int = Field(default=2, ge=0)
    """Responses of each evaluation, the better and the worse ones."""
    tensorboard_enabled: bool = True
    wandb_enabled: bool = False
    wandb: Wandb = Wandb()
    mlflow_enabled: bool = False
    mlflow: MLflow = MLflow()
    trackio_enabled: bool = False
    """Ours."""
    trackio: Project = Project()
    trace_period: int = Field(default=20, ge=0)
    """Tokens of the first traced_prompts prompts go to trace.jsonl at the first, the last and every
    trace_period-th step (ours); 0: never."""
    traced_prompts: int = Field(default=2, gt=0)


class CheckpointSection(Section):
    """Atomic checkpoints in the run's folder; the newest is always kept."""

    enabled: bool = True
    save_period: int = Field(default=20, gt=0)
    """Steps between checkpoints; one is also saved before each evaluation."""
    keep_top_k: int | None = Field(default=2, gt=0)
    """So many are kept beside it: the best by metric_name, else the newest; null: all."""
    metric_name: str | None = Field(default=None)
    """`val:NAME` or `train:NAME`."""
    higher_is_better: bool = True


class LocalConfig(Section):
    """The whole file; preflight.py has what must hold between keys, and of their files."""

    engine: Literal["local"] = "local"
    method: dict[str, Any]
    grpo: GRPOSection
    policy: PolicySection
    loss_fn: LossConfig = LossConfig()
    old_policy: OldPolicy = "trainer"
    """Whom the ratio is to: the trainer's own log-probs, or the sampler's (ours). What builds the
    run reads it as rollout_correction.bypass_mode."""
    rollout_correction: CorrectionConfig = CorrectionConfig()
    mismatch: MismatchConfig = MismatchConfig()
    data: DataSection = DataSection()
    logger: LoggerSection
    checkpointing: CheckpointSection = CheckpointSection()

    @field_validator("engine", mode="before")
    @classmethod
    def _is_one(cls, engine: Any) -> Any:
        if engine not in ("local", "nemo_rl"):
            raise ValueError(f"unknown engine {engine!r}: set it to local or nemo_rl")
        return engine

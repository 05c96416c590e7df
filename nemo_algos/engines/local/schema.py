"""The embedded engine's config: NeMo-RL's sections and key names wherever both have the thing."""

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.algorithms.extensions.loss_config import LossConfig, MismatchConfig
from nemo_algos.algorithms.extensions.old_policy import OldPolicy
from nemo_algos.engines.data.schema import DataSection
from nemo_algos.findings import Section

# above these a number is a slip, which would end a run late or hold the machine
MANY = 10**6
LONG = 10**9
MANY_THREADS = 1024
LARGEST_SEED = 2**32 - 1
TINY = "countdown-tiny"
TINY_MOE = "countdown-tiny-moe"
Emulated = Literal["fp8_blockwise", "fp8_current", "mxfp8", "nvfp4"]
EMULATED = get_args(Emulated)  # the recipes of low_precision.py


class GRPOSection(Section):
    """Rollout batches and evaluations."""

    num_prompts_per_step: int = Field(gt=0, le=MANY)
    """Prompts of a rollout batch."""
    num_generations_per_prompt: int = Field(gt=0, le=MANY)
    """Responses per prompt: the group whose rewards are compared."""
    max_num_steps: int = Field(gt=0, le=LONG)
    """Rollout batches of the run."""
    num_update_epochs: int = Field(default=1, gt=0, le=MANY)
    """Passes over each batch (ours); updates = epochs * batch / global batch."""
    seed: int = Field(default=42, ge=0, le=LARGEST_SEED)
    """Seed of problems, sampling and training."""
    val_samples_per_prompt: int = Field(default=64, ge=0, le=MANY)
    """Responses per prompt of an evaluation; 0: no evaluation."""
    max_val_samples: int = Field(default=128, gt=0, le=MANY)
    """Prompts of an evaluation."""
    val_period: int = Field(default=0, ge=0, le=LONG)
    """Steps between evaluations; 0: none."""
    val_at_start: bool = True
    """Evaluate before the first step."""
    val_at_end: bool = True
    """Evaluate after the last step."""
    stop_at_validation_metric: str | None = None
    """End training when this metric of an evaluation reaches stop_at_validation_threshold."""
    stop_at_validation_threshold: float | None = None
    """Value of stop_at_validation_metric that ends the run."""


class TorchClass(Section):
    """A torch class by its full name, and its arguments."""

    name: str
    """Such as torch.optim.AdamW."""
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Milestones(Section):
    """An entry of policy.scheduler between the schedulers of the list."""

    milestones: list[int]
    """Steps at which the next scheduler of the list starts."""


class GenerationSection(Section):
    """How rollouts are sampled."""

    max_new_tokens: int = Field(gt=0, le=LONG)
    """Tokens at which a response is cut."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature. Log-probs are taken at it, too."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only the most likely tokens that together have this probability."""
    top_k: int | None = Field(default=None, gt=0, le=LONG)
    """Sample only the N most likely tokens."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample only tokens with at least this share of the most likely token's probability."""
    support_replay: bool = False
    """Renormalise the trainer's log-probs over the tokens that these filters kept."""
    top_logprobs: int = Field(default=0, ge=0, le=LONG)
    """Keep the sampler's log-probs of the N likeliest tokens, for loss_fn.score_centering."""

    @property
    def filters(self) -> dict[str, Any]:
        """What `sampling.support` takes; empty where every token is kept."""
        return self.model_dump(include={"top_p", "top_k", "min_p"}, exclude_defaults=True)


class TokenizerSection(Section):
    """Tokenizer, if it is not the model's own."""

    name: str | None = None
    chat_template: str | None = None
    """Chat template (Jinja)."""
    pad_token: str | None = None


class DynamicBatching(Section):
    """Make micro-batches by tokens instead of by train_micro_batch_size."""

    enabled: bool = False
    train_mb_tokens: int = Field(default=4096, gt=0, le=LONG)
    """Most tokens of a micro-batch: prompt, response and padding."""


class LoraSection(Section):
    """Adapters of linear layers."""

    enabled: bool = False
    target_modules: list[str] = Field(default_factory=list)
    """Names of layers; * stands for anything."""
    exclude_modules: list[str] = Field(default_factory=list)
    """All layers without these."""
    match_all_linear: bool = True
    """Every linear layer but the output layer."""
    dim: int = Field(default=8, gt=0, le=MANY)
    """The adapters' rank."""
    alpha: int = Field(default=32, gt=0, le=MANY)
    """The adapters are scaled by alpha / dim."""
    dropout: float = Field(default=0.0, ge=0, le=0)
    """Must be 0: dropout makes the ratio differ from 1 before any update."""
    lora_A_init: Literal["xavier", "uniform"] = "xavier"


class DTensorSection(Section):
    """What NeMo-RL has in this section too."""

    activation_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    lora_cfg: LoraSection = LoraSection()


class RouterReplaySection(Section):
    """Replay of the experts that the sampler used."""

    enabled: bool = False
    """Route each token in training to the experts that the sampler used."""


class Shape(Section):
    """Sizes of countdown-tiny (113,856 parameters)."""

    width: int = Field(default=64, gt=0, le=MANY)
    layers: int = Field(default=2, gt=0, le=MANY)
    heads: int = Field(default=4, gt=0, le=MANY)
    """Attention heads. vLLM on a CPU needs heads of at least 32 numbers: 2."""
    hidden: int = Field(default=192, gt=0, le=MANY)
    experts: int = Field(default=1, gt=0, le=MANY)
    """Experts per layer. 1: an MLP; else each token uses two experts of size `hidden`."""


SHAPES = {TINY: Shape(), TINY_MOE: Shape(hidden=48, experts=8)}


class TaughtSection(Section):
    """How a countdown model is taught before it trains."""

    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """Seed of its first weights and lessons. Each seed gives another starting model."""
    steps: int | None = Field(default=None, gt=0, le=LONG)
    """Teaching steps of 64 right responses each; null: 700."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it is taught. cpu: so that runs on a CPU and on a GPU start from the same model."""


class PolicySection(Section):
    """The model and its optimizer."""

    model_name: str
    """countdown-tiny, countdown-tiny-moe (eight experts), or any causal LM: hub name, folder or
    .gguf file.
    """
    shape: Shape | None = None
    """Size of countdown-tiny (ours)."""
    taught: TaughtSection = TaughtSection()
    """How the countdown model was taught before the run (ours)."""
    tokenizer: TokenizerSection = TokenizerSection()
    precision: Literal["auto", "float32", "bfloat16", Emulated] = "float32"
    """Number format of matrix products. fp8_blockwise to nvfp4 emulate Transformer Engine's
    recipes.
    """
    train_global_batch_size: int = Field(gt=0, le=MANY)
    """Responses of an optimizer update."""
    train_micro_batch_size: int = Field(gt=0, le=MANY)
    """Responses per forward and backward pass."""
    generation_batch_size: int = Field(default=64, gt=0, le=MANY)
    """Responses that are sampled at once."""
    dynamic_batching: DynamicBatching = DynamicBatching()
    dtensor_cfg: DTensorSection = DTensorSection()
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest norm of an update's gradient; a larger one is scaled down."""
    optimizer: TorchClass
    scheduler: list[TorchClass | Milestones] = Field(default_factory=list)
    """Schedulers in order, with the milestones at which the next one starts."""
    generation: GenerationSection
    router_replay: RouterReplaySection = RouterReplaySection()
    device: Literal["cpu", "cuda", "mps", "auto"] = "auto"
    """Device (ours). auto: a GPU if there is one; the CPU for countdown models."""
    threads: int | None = Field(default=None, gt=0, le=MANY_THREADS)
    """CPU threads (ours)."""


class Project(Section):
    """Arguments of trackio.init."""

    project: str = "nemo-algos"
    name: str | None = None
    """Name of the run. Default: its folder's."""


class Wandb(Project):
    """Arguments of wandb.init."""

    entity: str | None = None


class MLflow(Section):
    """A run in MLflow."""

    experiment_name: str = "nemo-algos"
    run_name: str | None = None
    tracking_uri: str | None = None
    """Address of the MLflow server. Default: $MLFLOW_TRACKING_URI, else MLflow's own."""


class LoggerSection(Section):
    """The run's folder and the trackers."""

    log_dir: str
    """The folder of the runs' folders `exp_NNN`."""
    num_val_samples_to_print: int = Field(default=2, ge=0, le=MANY)
    """Responses of each evaluation to print, best and worst."""
    tensorboard_enabled: bool = True
    wandb_enabled: bool = False
    wandb: Wandb = Wandb()
    mlflow_enabled: bool = False
    mlflow: MLflow = MLflow()
    trackio_enabled: bool = False
    """Log to trackio (ours)."""
    trackio: Project = Project()
    trace_period: int = Field(default=20, ge=0, le=LONG)
    """Write the tokens of the first traced_prompts prompts to trace.jsonl at the first, last and
    every N-th step (ours); 0: never.
    """
    traced_prompts: int = Field(default=2, gt=0, le=MANY)
    """Prompts of a traced step, up to 8 responses each (ours)."""


class CheckpointSection(Section):
    """Atomic checkpoints in the run's folder; the newest is always kept."""

    enabled: bool = True
    save_period: int = Field(default=20, gt=0, le=LONG)
    """Steps between checkpoints; one is also saved before each evaluation."""
    keep_top_k: int | None = Field(default=2, gt=0, le=LONG)
    """Checkpoints kept besides the newest: the best by metric_name, else the newest. null: all."""
    metric_name: str | None = Field(default=None)
    """`val:NAME` or `train:NAME`."""
    higher_is_better: bool = True
    """Whether a larger metric_name is better."""


class LocalLossConfig(LossConfig):
    """What this engine alone has of it."""

    score_centering: bool = False
    """Take the mean under the sampler off each score, as NeMo-RL's key does, of a loss A log pi."""


class LocalConfig(Section):
    """The whole file; preflight.py has what must hold between keys, and of their files."""

    engine: Literal["local"] = "local"
    method: dict[str, Any]
    grpo: GRPOSection
    policy: PolicySection
    loss_fn: LocalLossConfig = LocalLossConfig()
    old_policy: OldPolicy = "trainer"
    """The old policy of the ratio: the trainer or the sampler (ours). `sampler` is the same as
    rollout_correction.bypass_mode: true.
    """
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

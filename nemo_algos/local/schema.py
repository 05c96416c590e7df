"""The embedded engine's config: NeMo-RL's sections and key names wherever both have the thing."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from nemo_algos.config import Section, did_you_mean
from nemo_algos.local.countdown import Rules
from nemo_algos.local.prompts import PromptSection, TrainedPrompt
from nemo_algos.methods.loss import LossConfig, MismatchConfig
from nemo_algos.rewards.weighted import Reward

TINY = "countdown-tiny"
TASKS = ("countdown", "math")
VERIFIER = "nemo_algos.rewards.math:verify_math"
NAME = re.compile("[a-z][a-z0-9_]*")
TAKEN = ("mean", "positive_share", "unverified")  # reward/NAME of a step's metrics


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


class GenerationSection(Section):
    """Sampling. top_p: in evaluation only."""

    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)


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


class Shape(Section):
    """Sizes of countdown-tiny; vLLM on a CPU takes heads of 32 and more, so 2 of them."""

    width: int = Field(default=64, gt=0)
    layers: int = Field(default=2, gt=0)
    heads: int = Field(default=4, gt=0)
    hidden: int = Field(default=192, gt=0)


class PolicySection(Section):
    """The model and its optimizer. device, threads, shape are ours; auto: see hardware.py.

    model_name: countdown-tiny, or a causal LM of transformers: hub name, directory, .gguf file.
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
    device: Literal["cpu", "cuda", "mps", "auto"] = "auto"
    threads: int | None = Field(default=None, gt=0)


class Split(Section):
    """A file (.jsonl, .json, .csv, each also .gz; .parquet), or a data set: folder, or hub name.

    subset, split: of a data set. The keys of problem (text, or a conversation) and gold answer.
    """

    data_path: str
    subset: str | None = None
    split: str | None = None
    input_key: str = "problem"
    output_key: str = "answer"


class RewardSection(Section):
    """`package.module:function`; pool: in the killable processes, else in the trainer's own."""

    function: str
    weight: float = 1.0
    pool: bool = True


class DataSection(PromptSection):
    """What is asked: countdown, math (problems from files), or a Task `package.module:NAME`.

    numbers, use_all: see countdown.Rules. rewards: functions by name, whose weighted sum is the
    reward; verifier: one alone, `package.module:function`. verifier_workers: killable processes of
    each.
    """

    task: str = "countdown"
    numbers: int = Field(default=3, ge=2, le=6)
    use_all: bool = True
    train: Split | None = None
    validation: Split | None = None
    max_input_seq_length: int | None = Field(default=None, gt=0)
    verifier: str = VERIFIER
    rewards: dict[str, RewardSection] | None = None
    verifier_workers: int = Field(default=1, gt=0)

    @property
    def rules(self) -> Rules:
        return Rules(self.numbers, self.use_all)

    @property
    def functions(self) -> dict[str, Reward]:
        """The reward functions by name; the verifier without one."""
        if self.rewards is None:
            return {"": Reward(self.verifier)}
        return {name: Reward(r.function, r.weight, r.pool) for name, r in self.rewards.items()}

    @property
    def trained(self) -> TrainedPrompt:
        """What an evaluation needs to ask the same."""
        own = self.model_dump(include={*PromptSection.model_fields})
        keys = self.train.model_dump(include={"input_key", "output_key"}) if self.train else {}
        rewards = [reward.function for reward in self.functions.values()]
        return TrainedPrompt(**own, **keys, rewards=rewards)

    @field_validator("rewards")
    @classmethod
    def _have_names(cls, rewards: dict[str, Any] | None) -> dict[str, Any] | None:
        wrong = [n for n in rewards or {} if not NAME.fullmatch(n) or n in TAKEN]
        if wrong or rewards == {}:
            what = f"{wrong[0]!r} is no name for a reward" if wrong else "name at least one reward"
            raise ValueError(f"{what}: use a-z, 0-9 and _, and none of {', '.join(TAKEN)}")
        return rewards

    @field_validator("task")
    @classmethod
    def _is_known_or_named(cls, task: str) -> str:
        if task not in TASKS and ":" not in task:
            hint = did_you_mean(task, [*TASKS, "package.module:NAME"])
            raise ValueError(f"no task {task!r}{hint}")
        return task


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
    mismatch: MismatchConfig = MismatchConfig()
    data: DataSection = DataSection()
    logger: LoggerSection
    checkpointing: CheckpointSection = CheckpointSection()

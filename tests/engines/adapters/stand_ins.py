"""The few names of TRL, verl and NeMo-RL that our code reads, where none is installed.

tests/real has the trainers. A module that was imported over these is dropped again.
"""

import sys
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Rows(dict):
    """TensorDict, as far as it is asked: named columns."""

    def __init__(self, values: Any, batch_size: int | None = None) -> None:
        super().__init__(values)

    def __len__(self) -> int:
        return len(next(iter(self.values())))

    def select(self, *names: str, strict: bool = True) -> "Rows":
        return Rows({name: self[name] for name in names if name in self})

    def to_padded_tensor(self) -> "Rows":
        return self


@dataclass
class GRPOConfig:
    """Fields with TRL's defaults."""

    output_dir: str = "unused"
    num_iterations: int = 1
    steps_per_generation: int = 1
    gradient_accumulation_steps: int = 1
    max_completion_length: int = 4
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    generation_kwargs: dict[str, Any] | None = None
    use_vllm: bool = False
    vllm_structured_outputs_regex: str | None = None
    vllm_importance_sampling_correction: bool = True
    save_strategy: str = "no"
    save_steps: float = 500
    beta: float = 0.0
    epsilon: float = 0.2
    loss_type: str = "dapo"


class OneProcess:
    """Accelerate's accelerator of a run with a single process."""

    device = torch.device("cpu")
    process_index = 0
    num_processes = 1
    is_main_process = True
    sync_gradients = True

    def gather(self, x: Tensor) -> Tensor:
        return x

    def reduce(self, x: Tensor) -> Tensor:
        return x

    def pad_across_processes(self, x: Tensor, dim: int) -> Tensor:
        return x


class Model(torch.nn.Module):
    """log pi_theta [B,S] is a parameter."""

    def __init__(self, logprobs: Tensor, dropout: float = 0.0) -> None:
        super().__init__()
        self.logprobs = torch.nn.Parameter(logprobs)
        self.drop = torch.nn.Dropout(dropout)
        self.attention_dropout = dropout


class GRPOTrainer:
    """TRL's, whose generation is the `batch` that a test gives, with rewards [B, functions]."""

    def __init__(self, model: Model, reward_funcs: list[Any], args: Any, batch: Any) -> None:
        self.model = model
        self.args = args
        self.batch = batch
        self.reward_funcs = reward_funcs
        self.reward_func_names = [function.__name__ for function in reward_funcs]
        self.reward_weights = torch.tensor(batch["weights"])
        self.accelerator = OneProcess()
        self.aux_loss_enabled = False
        self.mask_truncated_completions = False
        self.num_generations = self.num_generations_eval = batch["group_size"]
        self.state = SimpleNamespace(global_step=0, stateful_callbacks={})
        self._logs = {"advantages": []}
        self._metrics = {"train": Metrics(), "eval": Metrics()}
        self._step = 0
        self._train_batch_size = 8
        self.scored = 0

    def _calculate_rewards(self, *given: Any) -> Tensor:
        return self.batch["rewards"]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._calculate_rewards()
        return {k: v for k, v in self.batch.items() if isinstance(v, Tensor) and k != "rewards"}

    def _get_per_token_logps_and_entropies(
        self, model: Model, input_ids: Any, attention_mask: Any, keep: Any, size: Any = None,
        compute_entropy: bool = False, pixel_values: Any = None,
    ) -> tuple[Tensor, Tensor, None]:  # fmt: skip
        self.scored += 1
        return model.logprobs, -model.logprobs, None

    def _prepare_inputs(self, inputs: Any) -> Any:
        scored = self._generate_and_score_completions(inputs)
        self._buffered_inputs = [scored]
        return scored

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        raise AssertionError("TRL's own loss")


class Metrics(dict):
    def __missing__(self, name: str) -> list[float]:
        return self.setdefault(name, [])


def trl(monkeypatch: Any) -> ModuleType:
    """The adapter over these names."""
    return _over(monkeypatch, "nemo_algos.engines.adapters.trl", trl={
        "GRPOConfig": GRPOConfig, "GRPOTrainer": GRPOTrainer,
    })  # fmt: skip


@dataclass
class Queue:
    """TransferQueue: the rows that the trainer reads, and the fields that it puts there."""

    rows: dict[str, Any] = field(default_factory=dict)
    put: dict[str, Tensor] = field(default_factory=dict)

    def kv_batch_get(self, keys: Any, partition_id: Any, select_fields: list[str]) -> Rows:
        return Rows({k: v for k, v in self.rows.items() if k in select_fields})

    def kv_batch_put(self, keys: Any, partition_id: Any, fields: Rows) -> None:
        self.put.update(fields)


class Metric:
    """verl's, as a pair."""

    def __new__(cls, kind: str, value: float) -> Any:
        return kind, value

    @staticmethod
    def from_dict(values: dict[str, float], kind: str) -> dict[str, Any]:
        return {name: (kind, value) for name, value in values.items()}


def verl(monkeypatch: Any, queue: Queue) -> ModuleType:
    """The adapter over these names."""
    plain = {"no_padding_2_padding": lambda x, data: x, "response_to_nested": lambda x, like: x}
    modules = {
        "transfer_queue": {"kv_batch_get": queue.kv_batch_get, "kv_batch_put": queue.kv_batch_put},
        "tensordict": {"TensorDict": Rows},
        "verl.trainer.ppo.utils": {"need_critic": lambda config: False},
        "verl.trainer.ppo.v1": {
            "PPOTrainerSync": object,
            "register_trainer": lambda name: lambda kind: kind,
        },
        "verl.utils.metric": {"Metric": Metric},
        "verl.workers.utils.padding": plain,
    }
    return _over(monkeypatch, "nemo_algos.engines.adapters.verl", **modules)


class LossSection(SimpleNamespace):
    """NeMo-RL's ClippedPGLossConfig, whatever its fields."""

    def model_copy(self, update: dict[str, Any]) -> "LossSection":
        return LossSection(**{**vars(self), **update})


class ClippedPGLossFn:
    """NeMo-RL's loss without KL: the mean over sequences or tokens of min(r A, clip(r) A)."""

    def __init__(self, cfg: LossSection) -> None:
        self.cfg = cfg
        self.ratio_clip_min, self.ratio_clip_max = cfg.ratio_clip_min, cfg.ratio_clip_max
        self.reference_policy_kl_penalty = 0.0
        self.metric_normalizations: dict[str, Any] = {}

    def __call__(
        self, logprobs: Tensor, data: Any, sequences: Tensor, tokens: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        mask = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        advantages = data["advantages"][:, 1:]
        ratio = (logprobs - data["prev_logprobs"][:, 1:]).exp()
        cut = ratio.clamp(1 - self.ratio_clip_min, 1 + self.ratio_clip_max)
        gains = torch.minimum(ratio * advantages, cut * advantages).where(mask.bool(), 0.0)
        if self.cfg.token_level_loss:
            loss = -gains.sum() / tokens
        else:
            loss = -(gains.sum(1) / mask.sum(1).clamp(min=1)).sum() / sequences
        return loss, {"loss": loss.item()}


class GRPOAdvantageEstimator:
    """Whose result tells what this NeMo-RL's trainers take."""

    def __init__(self, *given: Any) -> None:
        pass

    def compute_advantage(self, prompt_ids: Any, rewards: Any, mask: Tensor) -> Tensor:
        return torch.zeros_like(mask)


def nemo(monkeypatch: Any, module: str) -> ModuleType:
    """`nemo_algos.engines.nemo.MODULE` over these names."""
    loss = {"ClippedPGLossFn": ClippedPGLossFn, "ClippedPGLossConfig": LossSection}
    loss["interfaces"] = SimpleNamespace()
    algorithms = {
        "advantage_estimator": SimpleNamespace(GRPOAdvantageEstimator=GRPOAdvantageEstimator)
    }
    keys = {"get_gdpo_reward_component_keys": lambda batch: [k for k in batch if k[:6] == "reward"]}
    modules = {
        "nemo_rl": {"__path__": ["/nowhere"]},
        "nemo_rl.algorithms": algorithms,
        "nemo_rl.algorithms.loss": loss,
        "nemo_rl.algorithms.utils": keys,
    }
    for name in ("columns", "versions", "loss_metrics", "estimator", "loss"):
        monkeypatch.delitem(sys.modules, f"nemo_algos.engines.nemo.{name}", raising=False)
    return _over(monkeypatch, f"nemo_algos.engines.nemo.{module}", **modules)


def _over(monkeypatch: Any, adapter: str, **modules: dict[str, Any]) -> ModuleType:
    for name, values in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            if parent not in modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, adapter, raising=False)
    before = {*sys.modules}
    found = import_module(adapter)
    for name in {*sys.modules} - before:  # taken out at the end, what it has imported too
        if name.startswith("nemo_algos.engines"):
            monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return found

"""A run of NeMo-RL's own trainers in this process: config, data, environment, logger, checkpoints.

    run = Run(tmp_path, mode="fused")        # or "packed", "unpacked"
    run.train()                              # NeMo-RL's grpo_train with its stock loss
    run.train(loss_fn=mine, policy=Proxy(run.policy), trainer=...)
    run.logger.series("train", "loss")

The config is NeMo-RL's examples/configs/grpo_math_1B.yaml with the overrides below and the
caller's. A second Run over the same tmp_path goes on from the last checkpoint, as NeMo-RL's setup()
does. Tests need the fixture `in_process` (Ray's calls answered here, CUDA's names meaning the CPU).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nemo_rl
import torch
from cpu_generation import CpuGeneration
from cpu_policy import CpuPolicy, tiny_llama
from cpu_task import STOPS, VOCABULARY, OddTokens, Prompts, tokenizer
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.models.generation import configure_generation_config
from nemo_rl.utils import config as nemo_config
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from no_ray import Actor
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader

MODES = {
    "unpacked": ["policy.sequence_packing.enabled=false"],
    "packed": ["policy.sequence_packing.enabled=true"],
    "fused": ["policy.sequence_packing.enabled=true", "+policy.sequence_packing.fuse_loss=true"],
}
OVERRIDES = [
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "grpo.max_num_steps=3",
    "grpo.val_period=0",
    "policy.train_global_batch_size=8",  # two optimizer steps for the 16 responses of a step
    "policy.train_micro_batch_size=2",
    "policy.max_total_sequence_length=32",
    "policy.sequence_packing.train_mb_tokens=48",
    "policy.sequence_packing.logprob_mb_tokens=48",
    "policy.make_sequence_length_divisible_by=4",
    "policy.precision=float32",
    "policy.dtensor_cfg.enabled=false",
    "policy.megatron_cfg.enabled=true",
    "policy.generation.max_new_tokens=12",
    f"policy.generation.stop_token_ids={STOPS}".replace(" ", ""),
    "policy.generation.vllm_cfg.enable_vllm_metrics_logger=false",
    "data.shuffle=false",
    "logger.monitor_gpus=false",
    "logger.tensorboard_enabled=true",
    "checkpointing.metric_name=null",
    "checkpointing.model_save_format=null",
    "checkpointing.save_period=1000",
]


def load_config(overrides: Sequence[str]) -> grpo.MasterConfig:
    """As examples/run_grpo.py."""
    nemo_config.register_omegaconf_resolvers()
    home = Path(nemo_rl.__file__).parents[1]
    config = nemo_config.load_config(str(home / "examples" / "configs" / "grpo_math_1B.yaml"))
    config = nemo_config.parse_hydra_overrides(config, list(overrides))
    return grpo.MasterConfig(**OmegaConf.to_container(config, resolve=True))


class RecordingLogger(Logger):
    """NeMo-RL's logger, which keeps what it is given: {prefix: {step: metrics}}."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.kept: dict[str, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))

    def log_metrics(
        self, metrics: dict[str, Any], step: int, prefix: str | None = "", *args: Any, **kwargs: Any
    ) -> None:
        self.kept[prefix or ""][step].update(metrics)
        super().log_metrics(metrics, step, prefix, *args, **kwargs)

    def series(self, prefix: str, name: str) -> list[Any]:
        return [metrics[name] for _, metrics in sorted(self.kept[prefix].items())]


class Run:
    def __init__(
        self,
        path: Path,
        overrides: Sequence[str] = (),
        *,
        mode: str = "unpacked",
        ranks: int = 2,
        lr: float = 0.1,
        seed: int = 0,
    ) -> None:
        paths = [f"logger.log_dir={path}/logs", f"checkpointing.checkpoint_dir={path}/checkpoints"]
        self.config = load_config([*OVERRIDES, *MODES[mode], *paths, *overrides])
        policy = self.config.policy
        self.tokenizer = tokenizer()
        policy["generation"] = configure_generation_config(policy["generation"], self.tokenizer)
        self.logger = RecordingLogger(self.config.logger)
        self.checkpointer = CheckpointManager(self.config.checkpointing)
        last = self.checkpointer.get_latest_checkpoint_path()
        self.state = _save_state(self.checkpointer.load_training_info(last))
        self.policy = CpuPolicy(policy, self.tokenizer, tiny_llama(VOCABULARY, seed), ranks, lr)
        self.policy.workers.load_checkpoint(*self.checkpointer.get_resume_paths(last))
        done = self.state["total_steps"] if isinstance(self.state, dict) else self.state.total_steps
        self.generation = CpuGeneration(self.policy, policy["generation"], seed, refits=done)
        self.dataloader = self._dataloader(4)
        if last is not None:
            self.dataloader.load_state_dict(torch.load(Path(last) / "train_dataloader.pt"))
        self.environments = {"odd": Actor(OddTokens())}
        self.loss_fn = ClippedPGLossFn(self.config.loss_fn)

    def _dataloader(self, size: int) -> StatefulDataLoader:
        data = Prompts()
        return StatefulDataLoader(data, size, collate_fn=rl_collate_fn, drop_last=True)

    def train(
        self,
        *,
        loss_fn: Any = None,
        policy: Any = None,
        trainer: Callable[..., None] = grpo.grpo_train,
    ) -> None:
        """A trainer with grpo_train's arguments (grpo_sync.grpo_train_sync has them too)."""
        trainer(
            policy or self.policy,
            self.generation,
            self.dataloader,
            self._dataloader(4),
            self.tokenizer,
            loss_fn or self.loss_fn,
            self.environments,
            self.environments,
            self.logger,
            self.checkpointer,
            self.state,
            self.config,
        )
        if hasattr(self.checkpointer, "shutdown"):  # main: checkpoints end in the background
            self.checkpointer.shutdown()

    def weights(self) -> torch.Tensor:
        model = self.policy.workers.model
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _save_state(loaded: Any) -> Any:
    """v0.7.0 keeps a dict, main a dataclass."""
    if hasattr(grpo, "_get_grpo_save_state"):
        return grpo._get_grpo_save_state(loaded)
    return loaded or grpo._default_grpo_save_state()

"""NeMo-RL's examples/configs/grpo_math_1B.yaml for a tiny model in float32 on CPU processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu_task import STOPS
from rehearsal import downscale

RATE = 0.02  # of plain SGD
ROWS, WIDTH = 16, 32  # of a step; positions of a row, where no layout asks for more
COMMON = (
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "policy.train_global_batch_size=8",  # two updates for the 16 rows of a step
    "policy.train_micro_batch_size=2",
    "policy.logprob_batch_size=2",
    f"policy.max_total_sequence_length={WIDTH}",
    "policy.sequence_packing.enabled=false",
    "policy.make_sequence_length_divisible_by=4",
    "policy.precision=float32",
    "policy.max_grad_norm=1000.0",
    f"policy.generation.max_new_tokens={WIDTH - 12}",
    f"policy.generation.stop_token_ids={STOPS}".replace(" ", ""),
    "policy.generation.vllm_cfg.enable_vllm_metrics_logger=false",
    "data.shuffle=false",
    "logger.monitor_gpus=false",
    "logger.tensorboard_enabled=false",
    "checkpointing.enabled=false",
    "checkpointing.metric_name=null",
    "checkpointing.model_save_format=null",
    "cluster.gpus_per_node=2",
)
DTENSOR = (
    "policy.dtensor_cfg.enabled=true",
    "policy.megatron_cfg.enabled=false",
    "policy.optimizer.name=torch.optim.SGD",
    "~policy.optimizer.kwargs",
    f"+policy.optimizer.kwargs={{lr: {RATE}}}",
    "~policy.scheduler",
)
MEGATRON = (
    "policy.dtensor_cfg.enabled=false",
    "policy.megatron_cfg.enabled=true",
    "++policy.megatron_cfg.train_iters=1000",
    "policy.megatron_cfg.optimizer.optimizer=sgd",
    f"policy.megatron_cfg.optimizer.lr={RATE}",
    f"policy.megatron_cfg.optimizer.min_lr={RATE}",
    "policy.megatron_cfg.optimizer.weight_decay=0.0",
    "policy.megatron_cfg.optimizer.sgd_momentum=0.0",
    "policy.megatron_cfg.optimizer.bf16=false",
    "policy.megatron_cfg.scheduler.lr_warmup_iters=0",
    f"policy.megatron_cfg.scheduler.lr_warmup_init={RATE}",
)
ON_A_CPU = {"dtensor": downscale.DTENSOR_ON_A_CPU, "megatron": downscale.MEGATRON_ON_A_CPU}
BACKENDS = {"dtensor": DTENSOR, "megatron": MEGATRON}
BATCHING: dict[str, tuple[str, ...]] = {
    "plain": (),
    "packed": ("policy.sequence_packing.enabled=true",),
    "dynamic": (
        "policy.dynamic_batching.enabled=true",
        "policy.dynamic_batching.sequence_length_round=4",
    ),
}


def composed(
    backend: str,
    model: Path,
    overrides: Sequence[str] = (),
    base: str = "grpo_math_1B.yaml",
    kind: type | None = None,
) -> Any:
    """NeMo-RL's MasterConfig, or another kind, as examples/run_grpo.py makes it."""
    import nemo_rl
    from nemo_rl.algorithms import grpo
    from nemo_rl.utils import config as nemo_config
    from omegaconf import OmegaConf

    nemo_config.register_omegaconf_resolvers()
    home = Path(nemo_rl.__file__).parents[1]
    config = nemo_config.load_config(str(home / "examples" / "configs" / base))
    own = (f"policy.model_name={model}", *COMMON, *BACKENDS[backend], *overrides)
    for path, value in ON_A_CPU[backend].items():
        if path.endswith(downscale.ALWAYS) or OmegaConf.select(config, path) is not None:
            OmegaConf.update(config, path, value, force_add=True)
    config = nemo_config.parse_hydra_overrides(config, list(own))
    return (kind or grpo.MasterConfig)(**OmegaConf.to_container(config, resolve=True))


def lora(policy: dict[str, Any]) -> dict[str, Any]:
    """The section of the backend in use."""
    megatron = policy["megatron_cfg"]
    return megatron["peft"] if megatron["enabled"] else policy["dtensor_cfg"]["lora_cfg"]


def replayed(policy: dict[str, Any]) -> bool:
    return bool((policy.get("router_replay") or {}).get("enabled"))

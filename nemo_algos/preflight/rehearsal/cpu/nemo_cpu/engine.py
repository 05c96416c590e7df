"""vLLM's engine, where NeMo-RL's worker asks it for what only a GPU has."""

from typing import Any

from nemo_cpu import replace, shim

WORKER = "nemo_rl/models/generation/vllm/vllm_worker.py"


@shim("vllm.engine.arg_utils", (WORKER, "enable_sleep_mode=True"))
def sleep_mode(module: Any) -> None:
    """vLLM refuses a sleep mode on a CPU; its CPU worker's sleep() and wake_up() only warn."""
    inner = module.EngineArgs.__post_init__

    def __post_init__(self: Any) -> None:
        self.enable_sleep_mode = False
        inner(self)

    replace(module.EngineArgs, "__post_init__", __post_init__)


@shim(
    "vllm.model_executor.layers.utils",
    ("vllm/model_executor/layers/linear.py", "dispatch_cpu_unquantized_gemm("),
    ("vllm/model_executor/layers/utils.py", "layer.weight = torch.nn.Parameter(torch.empty(0)"),
)
def linear_weights(module: Any) -> None:
    """vLLM packs a CPU's linear weights and drops the parameter, which no refit can then load."""
    import torch

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    replace(module, "dispatch_cpu_unquantized_gemm", keep)

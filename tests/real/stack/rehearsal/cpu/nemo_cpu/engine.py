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


METHOD = "vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py"


@shim(
    "vllm.model_executor.layers.fused_moe.cpu_fused_moe",
    ("vllm/model_executor/layers/fused_moe/cpu_fused_moe.py", "new_w13 = cpu_prepack_moe_weight("),
    (METHOD, "and check_cpu_sgl_kernel(n_w13"),
)
def expert_weights(module: Any) -> None:
    """vLLM packs a CPU's experts and drops the parameters, which no refit can then load."""
    from vllm.model_executor.layers import utils

    replace(module.CPUFusedMOE, "check_grouped_gemm", lambda self, layer: (False, "none"))
    replace(utils, "check_cpu_sgl_kernel", lambda *_: False)

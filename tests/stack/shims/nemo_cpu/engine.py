"""vLLM's engine and TransferQueue, where NeMo-RL asks them for what this machine has not."""

from typing import Any

from nemo_cpu import replace, shim

ADAPTER = "nemo_rl/data_plane/adapters/transfer_queue.py"
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


@shim("torch", (WORKER, "torch.cuda.get_device_capability()[0] >= 8"))
def capability(torch: Any) -> None:
    """Where enable_prefix_caching is null, it follows the GPU's generation: an A100's."""
    replace(torch.cuda, "get_device_capability", lambda *_: (8, 0))


@shim("nemo_rl.data_plane.adapters.transfer_queue", (ADAPTER, 'requires("nemo-rl")'))
def installed_queue(module: Any) -> None:
    """NeMo-RL has pip install TransferQueue for each actor, as its own metadata say: it is here."""
    replace(module, "_patch_tq_actor_runtime_env", lambda: None)

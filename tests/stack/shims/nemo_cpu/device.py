"""CUDA's names meaning the CPU."""

from typing import Any

from nemo_cpu import replace, shim

WORKERS = "nemo_rl/models/policy/workers/"
V2 = WORKERS + "dtensor_policy_worker_v2.py"
MEGATRON = WORKERS + "megatron_policy_worker.py"
BASE = WORKERS + "base_policy_worker.py"
TRAIN = "nemo_rl/models/automodel/train.py"


def on_cuda(device: Any) -> bool:
    """Whether an argument names a GPU: "cuda", "cuda:1", torch.device, or its number."""
    number = isinstance(device, int) and not isinstance(device, bool)
    return number or str(device).startswith("cuda")


@shim("torch", (V2, 'data = data.to("cuda")'), (V2, 'device="cuda"'), (MEGATRON, 'device="cuda"'))
def device_argument(torch: Any) -> None:
    """Tensors made on, or sent to, "cuda" stay on the CPU; nothing is pinned."""
    from torch.overrides import TorchFunctionMode

    class OnCPU(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = {k: v for k, v in (kwargs or {}).items() if k != "pin_memory"}
            if on_cuda(kwargs.get("device")):
                kwargs["device"] = "cpu"
            if func is torch.Tensor.to and len(args) > 1 and on_cuda(args[1]):
                args = (args[0], "cpu", *args[2:])
            return args[0] if func is torch.Tensor.cuda else func(*args, **kwargs)

    mode = OnCPU()
    mode.__enter__()


def cuda(name: str, value: Any, *calls: tuple[str, str]) -> None:
    """One name of torch.cuda."""

    def apply(torch: Any) -> None:
        """No driver."""
        replace(torch.cuda, name, value)

    shim("torch", *calls, name=f"cuda.{name}")(apply)


AUTOMODEL = "nemo_automodel/components/distributed/tensor_utils.py"
_device = {"number": 0}


def set_device(device: Any) -> None:
    _device["number"] = device if isinstance(device, int) else (device.index or 0)


current = (MEGATRON, "torch.cuda.current_device() == local_rank")
cuda("current_device", lambda: _device["number"], current, (BASE, "torch.cuda.current_device()"))
cuda("synchronize", lambda *_: None, (AUTOMODEL, "torch.cuda.synchronize()"))
cuda("get_device_name", lambda *_: "CPU", (TRAIN, "torch.cuda.get_device_name()"))


@shim(
    "transformers.utils.import_utils",
    ("nemo_rl/models/automodel/setup.py", 'attn_implementation="flash_attention_2" if'),
    ("transformers/utils/import_utils.py", "if not is_available or not (is_torch_cuda_available()"),
)
def flash_attention(module: Any) -> None:
    """Packed sequences ask for flash-attn 2: the package of that name beside this one, dense."""
    replace(module, "is_flash_attn_2_available", lambda: True)

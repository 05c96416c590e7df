"""CUDA's names meaning the CPU."""

from contextlib import nullcontext
from typing import Any

from nemo_cpu import replace, shim

WORKERS = "nemo_rl/models/policy/workers/"
V2 = WORKERS + "dtensor_policy_worker_v2.py"
MEGATRON = WORKERS + "megatron_policy_worker.py"
BASE = WORKERS + "base_policy_worker.py"
CORE = "megatron/core/"
DDP = "megatron/training/models/dist_utils.py"
TRAIN = "nemo_rl/models/automodel/train.py"
EMPTY = (
    "nemo_automodel/components/checkpoint/checkpointing.py",
    "torch.empty_like(t, device=device",
)


def on_cuda(device: Any) -> bool:
    """Whether an argument names a GPU: "cuda", "cuda:1", torch.device, or its number."""
    number = isinstance(device, int) and not isinstance(device, bool)
    return number or str(device).startswith("cuda")


@shim(
    "torch",
    (V2, 'data = data.to("cuda")'),
    (V2, 'device="cuda"'),
    (V2, "torch.randn(1).cuda()"),
    EMPTY,
    (MEGATRON, 'device="cuda"'),
    (CORE + "tensor_parallel/mappings.py", "device=torch.cuda.current_device()"),
    (CORE + "optimizer/clip_grads.py", "param.grad.type() == 'torch.cuda.FloatTensor'"),
)
def device_argument(torch: Any) -> None:
    """Tensors made on, or sent to, "cuda" stay on the CPU and call themselves CUDA's."""
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
            elif func is torch.Tensor.cuda:
                return args[0]
            out = func(*args, **kwargs)
            named = func is torch.Tensor.type and isinstance(out, str)
            return out.replace("torch.", "torch.cuda.") if named else out

    def enter() -> None:
        if torch.overrides._get_current_function_mode() is None:
            OnCPU().__enter__()

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        """torch.autograd.backward leaves the mode, and a backward product may make tensors."""
        with OnCPU():
            return run(*args, **kwargs)

    enter()
    run = replace(torch.autograd, "_engine_run_backward", run_backward)
    replace(torch, "on_this_thread", enter)


@shim("torch", (V2, 'torch.autocast(device_type="cuda"'))
def autocast(torch: Any) -> None:
    """What is cast on a GPU is cast on the CPU."""

    class OnCPU(torch.autocast):
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if on_cuda(device_type) else device_type, *args, **kwargs)

    replace(torch, "autocast", OnCPU)


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


class Stream:
    """Work on a CPU has finished when the call returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self) -> Any:
        return self


current = (MEGATRON, "torch.cuda.current_device() == local_rank")
cuda("current_device", lambda: _device["number"], current, (BASE, "torch.cuda.current_device()"))
cuda("device_count", lambda: 1, ("megatron/bridge/training/initialize.py", "(device_count=0)"))
cuda("set_device", set_device, (MEGATRON, "torch.cuda.set_device(local_rank)"))
cuda("synchronize", lambda *_: None, (AUTOMODEL, "torch.cuda.synchronize()"))
cuda("get_device_name", lambda *_: "CPU", (TRAIN, "torch.cuda.get_device_name()"))
cuda("Stream", Stream, (DDP, "torch.cuda.Stream()"))
cuda("current_stream", lambda *_: Stream(), (DDP, "torch.cuda.current_stream()"))
cuda("stream", lambda *_: nullcontext(), (DDP, "torch.cuda.stream("))


RANDOM = CORE + "tensor_parallel/random.py"


@shim(
    "torch",
    (RANDOM, "orig_rng_state = torch.cuda.get_rng_state()"),
    (RANDOM, "return torch.cuda.random.get_rng_state(device=device)"),
)
def generator(torch: Any) -> None:
    """The CPU's generator is the device's."""
    for owner in (torch.cuda, torch.cuda.random):
        replace(owner, "get_rng_state", lambda *_, **__: torch.get_rng_state())


@shim(
    "transformers.utils.import_utils",
    ("nemo_rl/models/automodel/setup.py", 'attn_implementation="flash_attention_2" if'),
    ("transformers/utils/import_utils.py", "if not is_available or not (is_torch_cuda_available()"),
    ("transformers/modeling_utils.py", "is not available on CPU"),
)
def flash_attention(module: Any) -> None:
    """Packed sequences ask for flash-attn 2: the package of that name beside this one, dense."""
    replace(module, "is_flash_attn_2_available", lambda: True)

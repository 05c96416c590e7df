"""What NeMo-RL imports and a CPU has not: stand-ins for `megatron` and `nemo_automodel`.

Both are in NeMo-RL's submodules, and their packages want CUDA's. Any module of theirs imports, and
any name in it is an empty class; `FUNCTIONAL` holds the few names that NeMo-RL's code runs here:

- megatron.core.parallel_state: the groups and ranks of one process (`set_groups` for others),
- megatron.core.packed_seq_params.PackedSeqParams: its fields,
- megatron.core.pipeline_parallel.get_forward_backward_func: the schedule without pipelining,
- megatron.core.utils.get_model_config, megatron.training.utils.get_ltor_masks_and_position_ids,
  and the activation offload manager, switched off.

`ABSENT` names raise ImportError: NeMo-RL checks that they do not exist.
NeMo-RL puts tensors on "cuda" by name in `Tensor.cuda` and `BatchedDataDict.to`: `cuda_is_cpu`.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

STUBBED = ("megatron", "nemo_automodel")
ABSENT = {"nemo_automodel.NeMoAutoModelForTokenClassification"}
_groups: dict[str, dist.ProcessGroup] = {}


def set_groups(**groups: dist.ProcessGroup) -> None:
    """Process groups by Megatron's names (tensor_model, context, ...), in place of one rank's."""
    _groups.update(groups)


def group(name: str) -> dist.ProcessGroup:
    """NeMo-RL's path for logits on a CPU, the vocabulary-parallel one: its other calls .cuda()."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return _groups.get(name) or dist.group.WORLD


def _parallel_state() -> dict[str, Any]:
    names: dict[str, Any] = {"is_pipeline_last_stage": lambda **_: True}
    for name in ("tensor_model", "context", "data", "pipeline_model"):
        get: dict[str, Callable[[str], Any]] = {
            "group": group,
            "rank": lambda name: dist.get_rank(group(name)),
            "world_size": lambda name: dist.get_world_size(group(name)),
        }
        for what, call in get.items():
            names[f"get_{name}_parallel_{what}"] = lambda *_, c=call, n=name, **__: c(n)
    return names


def forward_backward(
    *,
    forward_step_func: Callable[..., Any],
    data_iterator: Iterator[Any],
    model: torch.nn.Module,
    num_microbatches: int,
    forward_only: bool,
    **_: Any,
) -> list[dict[str, Any]]:
    """Megatron's forward_backward_no_pipelining at context parallel size 1."""
    results = []
    for _step in range(num_microbatches):
        output, loss_function = forward_step_func(data_iterator, model)
        loss, result = loss_function(output)
        if not forward_only:
            (loss / num_microbatches).backward()
        results.append(result)
    return results


FUNCTIONAL: dict[str, dict[str, Any]] = {
    "megatron.core.parallel_state": _parallel_state(),
    "megatron.core.packed_seq_params": {"PackedSeqParams": SimpleNamespace},
    "megatron.core.pipeline_parallel": {"get_forward_backward_func": lambda: forward_backward},
    "megatron.core.pipeline_parallel.fine_grained_activation_offload": {
        "PipelineOffloadManager": SimpleNamespace(OFFLOAD_MGR=None)
    },
    "megatron.core.utils": {"get_model_config": lambda model: model.config},
    "megatron.training.utils": {"get_ltor_masks_and_position_ids": lambda **_: (None, None, None)},
}


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if name.startswith("__") or full in ABSENT:
            raise AttributeError(full)
        value = type(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in STUBBED or fullname in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _Module(spec.name)
        module.__dict__.update(FUNCTIONAL.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def cuda_is_cpu(patch: Any) -> None:
    """`patch` is a pytest.MonkeyPatch."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    to = BatchedDataDict.to
    patch.setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)
    patch.setattr(
        BatchedDataDict, "to", lambda self, device: to(self, "cpu" if device == "cuda" else device)
    )

"""setattr(*DROP[name]): one collective less, or the padding not excluded.

In a rank that ends with its case; each rank is left with what is its own.
"""

import importlib
from typing import Any

import model
import substitutes
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from nemo_algos.algorithms.core import entropy, linear_entropy


class Silent:
    """torch.distributed whose collectives reach no other rank."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    @staticmethod
    def all_reduce(*_: Any, **__: Any) -> None: ...

    @staticmethod
    def all_gather(parts: list[Tensor], own: Tensor, **_: Any) -> None:
        for part in parts:
            part.copy_(own)


def _nothing(*_: Any, **__: Any) -> None: ...


FINALIZE = importlib.import_module("megatron.core.distributed.finalize_model_grads")
DROP: dict[str, tuple[Any, str, Any]] = {  # whose attribute, its name, what it becomes
    "norms over tensor ranks": (FINALIZE, "_allreduce_non_tensor_model_parallel_grads", _nothing),
    "tied embedding over stages": (FINALIZE, "_allreduce_word_embedding_grads", _nothing),
    "gradients over data ranks": (DistributedDataParallel, "finish_grad_sync", _nothing),
    "sequences over context ranks": (substitutes, "dist", Silent()),
    "vocabulary over tensor ranks": (entropy, "dist", Silent()),
    "hidden's gradient over tensor ranks": (linear_entropy, "dist", Silent()),
    "padding of the vocabulary": (model, "VOCABULARY", model.PADDED),
}

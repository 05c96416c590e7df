"""gloo where NCCL is asked for."""

from typing import Any

from nemo_cpu import replace, shim

EMBEDDING = "megatron/core/models/common/embeddings/language_model_embedding.py"
AUTOMODEL = "nemo_rl/models/automodel/setup.py"


@shim(
    "torch.distributed.distributed_c10d",
    (AUTOMODEL, 'backend = "nccl" if not'),
    ("nemo_rl/models/megatron/setup.py", 'init_process_group("nccl")'),
)
def nccl(module: Any) -> None:
    """NCCL has no CPU form: gloo."""
    backend = module.Backend
    original = backend.__new__

    def new(cls: Any, name: str) -> Any:
        return original(cls, "gloo" if name == "nccl" else name)

    replace(backend, "__new__", staticmethod(new))


@shim(
    "torch.distributed.distributed_c10d",
    (EMBEDDING, "self.word_embeddings = tensor_parallel.VocabParallelEmbedding("),
)
def thread(module: Any) -> None:
    """Ray runs an actor in another thread than the one that imported torch."""
    original = module.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        module.torch.on_this_thread()
        original(*args, **kwargs)

    replace(module, "init_process_group", init_process_group)


@shim(
    "torch.distributed.device_mesh",
    ("nemo_automodel/components/distributed/mesh_utils.py", 'device_type="cuda" if backend'),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", "copy_out_event.record()"),
)
def cuda_mesh(module: Any) -> None:
    """Automodel names the mesh's device by the backend asked for."""
    original = module.init_device_mesh

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    replace(module, "init_device_mesh", init_device_mesh)

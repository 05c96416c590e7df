"""Each shim of vLLM's engine, the refit and the data plane is needed: without it, a thing fails."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import models
import nemo_cpu
import pytest
import torch
import zmq
from engine_here import Engine
from nemo_rl.data_plane.adapters import transfer_queue
from nemo_rl.models.policy import utils as policy
from nemo_rl.utils import nvml
from trainer import Trainer

pytestmark = pytest.mark.smoke
OWN = ("nemo_cpu.engine", "nemo_cpu.refit", "nemo_cpu.data_plane")


@contextmanager
def without(name: str) -> Iterator[None]:
    importlib.import_module(nemo_cpu.SHIMS[name].module)
    replaced = [(owner, attribute) for owner, attribute, _ in nemo_cpu.REPLACED[name]]
    kept = nemo_cpu.REPLACED[name], [getattr(*one) for one in replaced]
    nemo_cpu.undo(name)
    try:
        yield
    finally:
        nemo_cpu.REPLACED[name] = kept[0]
        for (owner, attribute), value in zip(replaced, kept[1], strict=True):
            setattr(owner, attribute, value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved("llama", tmp_path_factory.mktemp("models"))


DIRECT: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "device_uuid": (lambda: nvml.get_device_uuid(0), Exception),
    "free_memory": (lambda: nvml.get_free_memory_bytes(0), Exception),
    "ipc_handle": (
        lambda: policy.rebuild_cuda_tensor_from_ipc(
            policy.get_handle_from_tensor(torch.zeros(4, dtype=torch.uint8)), 0
        ),
        Exception,
    ),
    "stream_number": (lambda: int(torch.cuda.current_stream().cuda_stream), TypeError),
    "vllm_streams": (lambda: torch.cuda.current_stream().synchronize(), AttributeError),
    "queue_actors": (
        lambda: transfer_queue._patch_tq_actor_runtime_env(),
        importlib.metadata.PackageNotFoundError,
    ),
    "properties": (lambda: torch.cuda.get_device_capability(), RuntimeError),
}


@pytest.mark.parametrize("name", DIRECT)
def test_what_a_call_needs(name: str) -> None:
    call, error = DIRECT[name]
    with without(name), pytest.raises(error):
        call()
    call()


def test_engines_outside_ray_have_sockets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core of an asynchronous engine is a process of its own, with its GPU's number."""
    names = []
    for visible, index in (("3", 0), ("2,5", 1), ("", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        names.append(nvml.get_device_uuid(index).rpartition("-")[2])
    assert names == ["3", "5", "1"]


def test_sleep_mode(model: Path) -> None:
    with without("sleep_mode"), pytest.raises(ValueError, match="Sleep mode is not supported"):
        Engine(model)


def test_linear_weights(model: Path, ref: str) -> None:
    """The receiver says that nothing was loaded; v0.7.0's leaves the sender without an answer."""
    trainer = Trainer(model)
    with without("linear_weights"):
        engine = Engine(model)
    engine.prepare(trainer)
    engine.socket.setsockopt(zmq.RCVTIMEO, 5000)
    try:
        if ref == "main":
            assert not engine.by_zmq(trainer.weights.items())
        else:
            with pytest.raises(TimeoutError, match="ZMQ communication timeout after 5000ms"):
                engine.by_zmq(trainer.weights.items())
    finally:
        engine.close()


def test_nccl4py() -> None:
    import nemo_rl.distributed.stateless_process_group  # noqa: F401 - with the shim

    names = [name for name in sys.modules if name == "nccl" or name.startswith("nccl.")]
    kept = {name: sys.modules.pop(name) for name in names}
    try:
        with pytest.raises(ModuleNotFoundError):
            import nccl.core  # noqa: F401
    finally:
        sys.modules.update(kept)


def test_no_other_shim_is_of_these_files() -> None:
    own = {n for n, s in nemo_cpu.SHIMS.items() if s.apply.__module__ in OWN}
    assert own == {*DIRECT, "sleep_mode", "linear_weights", "expert_weights", "nccl4py"}
    for name in own:
        assert len(list(nemo_cpu.SHIMS[name].lines())) == len(nemo_cpu.SHIMS[name].calls) > 0

"""Every method on NeMo-RL's own policy workers, against one plain process.

NeMo-RL's Policy, worker group and workers (DTensor v2, Megatron) with our entropy worker,
estimator, policy proxy and loss; the plain process is Hugging Face's model and the embedded loss.
The workers are forked, or actors of a real Ray. A layout's processes stay for all its methods, from
the same weights each time.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import configs
import driver
import forked
import models
import nemo_cpu
import own_ray
import pytest
import ray

from nemo_algos import METHODS

FEW = ("erpo", "quatro")  # entropies and token bounds; sequences


@dataclass(frozen=True)
class Layout:
    backend: str
    overrides: tuple[str, ...] = ()
    kind: str = "llama"
    ranks: int = 2
    methods: tuple[str, ...] = FEW
    ray: bool = False


def _parallel(backend: str, **sizes: int) -> tuple[str, ...]:
    section, names = {
        "dtensor": ("dtensor_cfg", {"tp": "tensor_parallel_size", "cp": "context_parallel_size"}),
        "megatron": (
            "megatron_cfg",
            {
                "tp": "tensor_model_parallel_size",
                "pp": "pipeline_model_parallel_size",
                "cp": "context_parallel_size",
            },
        ),
    }[backend]
    return tuple(f"policy.{section}.{names[k]}={v}" for k, v in sizes.items())


def _layouts() -> dict[str, Layout]:
    packed = configs.BATCHING["packed"]
    cool = ("policy.generation.temperature=0.7",)
    chunks = ("policy.logprob_chunk_size=5",)
    fused = (
        "++policy.megatron_cfg.use_fused_linear_logprobs=true",
        "++policy.megatron_cfg.fused_linear_logprobs_chunk_size=8",
    )
    every = {
        f"{backend}-{batching}": Layout(backend, overrides, methods=tuple(METHODS))
        for backend in configs.BACKENDS
        for batching, overrides in configs.BATCHING.items()
    }
    tensor, both = _parallel("dtensor", tp=2), ("policy.dtensor_cfg.sequence_parallel=true",)
    dtensor = {
        "tp": Layout("dtensor", tensor),
        "tp-packed": Layout("dtensor", tensor + packed),
        "tp-fsdp-sequence": Layout("dtensor", tensor + both, ranks=4),
        "tp-chunks": Layout("dtensor", tensor + chunks),
        "temperature": Layout("dtensor", cool),
        "tied": Layout("dtensor", tensor, kind="tied"),
        "qwen2-packed": Layout("dtensor", packed, kind="qwen2"),
        "grouped": Layout("dtensor", packed, kind="grouped"),
        "odd": Layout("dtensor", kind="odd"),
    }
    megatron = {
        "tp": Layout("megatron", _parallel("megatron", tp=2)),
        "pp": Layout("megatron", _parallel("megatron", pp=2)),
        "tp-pp-packed": Layout("megatron", _parallel("megatron", tp=2, pp=2) + packed, ranks=4),
        "temperature-packed": Layout("megatron", cool + packed),
        "tied-pp": Layout("megatron", _parallel("megatron", pp=2), kind="tied"),
        "qwen2-tp": Layout("megatron", _parallel("megatron", tp=2), kind="qwen2"),
        "grouped-packed": Layout("megatron", packed, kind="grouped"),
        "odd": Layout("megatron", kind="odd"),
    }
    if os.environ["NEMO_RL_REF"] == "main":  # v0.7.0 has another fusion of the loss alone
        megatron["fused"] = Layout("megatron", fused)
    sequence = ("policy.megatron_cfg.sequence_parallel=true",)
    wide = ("policy.make_sequence_length_divisible_by=8",)
    context = _parallel("megatron", cp=2) + packed + wide
    megatron |= {
        "tp-sequence": Layout("megatron", _parallel("megatron", tp=2) + sequence),
        "tp-sequence-packed": Layout("megatron", _parallel("megatron", tp=2) + sequence + packed),
        "cp-packed": Layout("megatron", context),
        "tp-cp-packed": Layout(
            "megatron", context + _parallel("megatron", tp=2) + sequence, ranks=4
        ),
    }
    through_ray = {
        f"{backend}-ray": Layout(backend, packed, methods=("erpo",), ray=True)
        for backend in configs.BACKENDS
    }
    return (
        every
        | through_ray
        | {f"dtensor-{name}": layout for name, layout in dtensor.items()}
        | {f"megatron-{name}": layout for name, layout in megatron.items()}
    )


LAYOUTS = _layouts()
SMOKE = {("dtensor-packed", "erpo"), ("megatron-packed", "erpo")}


def _case(*values: str) -> Any:
    return pytest.param(*values, marks=[pytest.mark.smoke] if values in SMOKE else [])


@pytest.fixture(scope="module")
def policy(request: pytest.FixtureRequest, imported: None, folder: Path) -> Iterator[forked.Forked]:
    """A layout's driver.Driver, in a process of its own."""
    layout, address = LAYOUTS[request.param], ""
    with ExitStack() as held:
        if layout.ray:
            head = own_ray.head(folder, {}, layout.ranks)
            address = held.enter_context(head)["RAY_ADDRESS"]
        process = started(layout, folder, address)
        held.callback(process.end)
        process.built.get()
        yield process


def started(layout: Layout, folder: Path, address: str = "", without: str = "") -> forked.Forked:
    """The driver.Driver of a layout, on the Ray of this address; without: a shim to undo in it."""
    model = models.saved(layout.kind, folder / "models")

    def make() -> driver.Driver:
        from nemo_algos.nemo import package

        if without:
            nemo_cpu.undo(without)
        cluster = actors(address, layout.ranks) if layout.ray else forked.cluster(layout.ranks)
        worker = package.register_worker(f"{layout.backend}_worker")
        return driver.Driver(layout.backend, model, cluster, worker, layout.overrides)

    return forked.Forked(make)


def actors(address: str, ranks: int) -> Any:
    """A cluster of one node, whose workers are Ray's actors."""
    from nemo_rl.distributed.virtual_cluster import RayVirtualCluster

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the actors', which import driver.py
    ray.init(address, log_to_driver=False)
    return RayVirtualCluster([ranks], num_gpus_per_node=ranks)


@pytest.mark.parametrize(
    ("policy", "method"),
    [_case(name, method) for name, layout in LAYOUTS.items() for method in layout.methods],
    indirect=["policy"],
)
def test_a_method_is_one_processes(policy: forked.Forked, method: str) -> None:
    policy.call("reset").get()
    check_forward(policy.call("forward").get())
    check_updates(policy.call("updates", method).get())


def check_forward(apart: dict[str, float]) -> None:
    assert apart["logprobs"] < 1e-5
    assert apart["entropies"] < 1e-5
    assert apart["beyond"] == 0.0


def check_updates(found: dict[str, Any]) -> None:
    """Float32 sums in another order, and what an update makes of them: more where it moves much."""
    assert found["moved"] > 0.05
    tolerance = 1e-5 * max(1.0, 10 * found["moved"])
    for name in ("losses", "norms"):
        got, wanted = found[name]
        assert got == pytest.approx(wanted, rel=tolerance, abs=1e-6), name
    assert found["logprobs"] < tolerance
    assert found["entropies"] < tolerance
    assert found["reference"] < 1e-6
    assert found["weights"] < 1.0

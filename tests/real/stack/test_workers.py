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
from pathlib import Path
from typing import Any, NamedTuple

import driver
import forked
import models
import pytest
import ray
from layouts import LAYOUTS, Layout

from nemo_algos.preflight.check.data import scoring

SMOKE = ("dtensor-packed", "megatron-packed", "dtensor-packed-ray", "megatron-packed-ray")


def _case(layout: str, method: str) -> Any:
    smoke = layout in SMOKE and method == "erpo"
    return pytest.param(layout, method, marks=[pytest.mark.smoke] if smoke else [])


@pytest.fixture(scope="module")
def policies(imported: None, folder: Path) -> Iterator["Policies"]:
    policies = Policies(folder)
    yield policies
    policies.held.close()


class Policies:
    """One layout's driver.Driver at a time, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name, self.held = folder, "", ExitStack()

    def of(self, name: str) -> forked.Forked:
        if name != self.name:
            self.held.close()
            self.name, self.process = name, self._begin(Layout(name))
        return self.process

    def _begin(self, layout: Layout) -> forked.Forked:
        address = ""
        if layout.ray:
            head = scoring.head(self.folder, {}, layout.ranks)
            address = self.held.enter_context(head)["RAY_ADDRESS"]
        process = started(layout, self.folder, address)
        self.held.callback(process.end)
        process.built.get()
        return process


def started(layout: Layout, folder: Path, address: str) -> forked.Forked:
    """The driver.Driver of a layout, on the Ray of this address."""
    model = models.saved(layout.kind, folder / "models")

    def make() -> driver.Driver:
        from nemo_algos.engines.nemo import worker_env

        cluster = actors(address, layout.ranks) if layout.ray else forked.cluster(layout.ranks)
        worker = worker_env.register_worker(f"{layout.backend}_worker")
        return driver.Driver(layout.backend, model, cluster, worker, layout.overrides)

    return forked.Forked(make)


def actors(address: str, ranks: int) -> Any:
    """A cluster of one node, whose workers are Ray's actors."""
    from nemo_rl.distributed.virtual_cluster import RayVirtualCluster

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the actors import in_workers.py
    ray.init(address, log_to_driver=False)
    return RayVirtualCluster([ranks], num_gpus_per_node=ranks)


@pytest.mark.parametrize(
    ("layout", "method"),
    [_case(name, method) for name, methods in LAYOUTS.items() for method in methods],
)
def test_a_method_is_one_processes(policies: Policies, layout: str, method: str) -> None:
    policy = policies.of(layout)
    limits = Limits(*policy.call("limits").get())
    policy.call("reset").get()
    check_forward(policy.call("errors").get(), limits)
    check_updates(policy.call("updates", method).get(), limits)


class Limits(NamedTuple):
    """Of what rounding may do to log-probs and entropies, nats; to numbers near 0; to weights.

    relative: of losses and norms; weights in units of what float32 allows them.
    """

    nats: float
    relative: float
    absolute: float
    weights: float


def check_forward(apart: dict[str, float], limits: Limits) -> None:
    assert apart["logprobs"] < limits.nats
    assert apart["entropies"] < limits.nats
    assert apart["beyond"] == 0.0


def check_updates(found: dict[str, Any], limits: Limits) -> None:
    """Sums in another order, and what an update makes of them: more where it moves much."""
    assert found["moved"] > 0.05
    grown = max(1.0, 10 * found["moved"])
    for name in ("losses", "norms", "mismatch"):
        got, wanted = found[name]
        wanted = pytest.approx(wanted, rel=grown * limits.relative, abs=limits.absolute)
        assert got == wanted, name
    got, wanted = found["own"]  # of the same log-probs
    assert got == pytest.approx(wanted, rel=1e-5 * grown, abs=1e-6)
    assert found["logprobs"] < grown * limits.nats
    assert found["entropies"] < grown * limits.nats
    assert found["reference"] < 1e-6
    assert found["recorded"] == 0
    assert found["weights"] < limits.weights

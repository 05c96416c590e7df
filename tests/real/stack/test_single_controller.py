"""The single controller's step with our half in its actor, against one plain process.

Real: the actor's class, TransferQueue, NeMo-RL's TQPolicy and its Megatron workers on a real Ray.
The plain process takes the whole batch; the controller takes it in chunks of groups.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import forked
import models
import pytest
from layouts import Layout
from test_workers import Limits, actors

from nemo_algos.preflight.check.data import scoring

LAYOUTS = ("megatron-packed-ray", "megatron-tp-packed-ray")
WHOLE = 4  # groups of a step
METHODS = ("grpo", "etr", "quatro", "erpo", "apmpo")
CASES = [
    *((method, WHOLE) for method in METHODS),
    *((f"{method}-bypass", chunk) for method in METHODS[:3] for chunk in (WHOLE, 2, 1)),
    *(("erpo", chunk) for chunk in (2, 1)),
    ("apmpo-bypass", WHOLE),
    ("etr-corrected", 2),
    ("quatro-rejecting", WHOLE),
    ("apmpo-rejecting", WHOLE),
    ("quatro-bonus", WHOLE),
]


# chunks that are not the whole, rejected tokens, a term's own divisor, both sides
SMOKE_CASES = {
    f"test_a_step_is_one_processes[{LAYOUTS[0]}-etr-bypass-2]",
    f"test_a_step_is_one_processes[{LAYOUTS[0]}-quatro-rejecting-{WHOLE}]",
    f"test_a_step_is_one_processes[{LAYOUTS[0]}-quatro-bonus-{WHOLE}]",
    f"test_chunks_are_the_synchronous_trainers_batch[{LAYOUTS[0]}-etr-bypass]",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def driver(
    request: pytest.FixtureRequest, main_alone: None, imported: None, folder: Path
) -> Iterator[forked.Forked]:
    """A controller.Controlled, in a process of its own."""
    layout = Layout(request.param)
    model = models.saved(layout.kind, folder / "models")
    with ExitStack() as held:
        address = held.enter_context(scoring.head(folder, {}, layout.ranks))["RAY_ADDRESS"]

        def make() -> object:
            import controller

            from nemo_algos.engines.nemo import worker_env

            cluster = actors(address, layout.ranks)
            worker = worker_env.register_worker("megatron_worker")
            return controller.Controlled("megatron", model, cluster, worker, layout.overrides)

        process = forked.Forked(make)
        held.callback(process.end)
        process.built.get()
        yield process


@pytest.mark.parametrize(("case", "chunk"), CASES)
def test_a_step_is_one_processes(driver: forked.Forked, case: str, chunk: int) -> None:
    limits = Limits(*driver.call("limits").get())
    driver.call("reset").get()
    found = driver.call("updates", case, chunk).get()
    assert found["moved"] > 0.02
    grown = max(1.0, 10 * found["moved"])
    for name in ("losses", "norms", "mismatch"):
        got, wanted = found[name]
        close = pytest.approx(wanted, rel=grown * limits.relative, abs=limits.absolute)
        assert got == close, name
    assert found["logprobs"] < grown * limits.nats
    assert found["weights"] < limits.weights


SIDES = ("grpo-bypass", "etr-bypass", "quatro-bypass", "erpo", "gspo-bypass", "apmpo_group-bypass")


@pytest.mark.parametrize("case", SIDES)
def test_chunks_are_the_synchronous_trainers_batch(driver: forked.Forked, case: str) -> None:
    driver.call("reset").get()
    sides = driver.call("sides", case).get()
    wanted = sides.pop("synchronous")
    assert len(wanted["advantages"]) > 50 and len({*wanted["advantages"]}) > 2
    for name, got in sides.items():
        for what, value in wanted.items():
            assert got[what] == pytest.approx(value, rel=1e-6, abs=1e-7), (name, what)


def test_the_whole_step_of_apmpo_is_the_synchronous_trainers(driver: forked.Forked) -> None:
    """Its bounds are of the batch, which is why `check` refuses chunks of it."""
    driver.call("reset").get()
    sides = driver.call("sides", "apmpo-bypass").get()
    wanted, whole = sides["synchronous"], sides["chunks of 4"]
    for what, value in wanted.items():
        assert whole[what] == pytest.approx(value, rel=1e-6, abs=1e-7), what
    assert sides["chunks of 1"]["loss and norm"] != pytest.approx(wanted["loss and norm"], rel=1e-4)


def test_chunks_are_traced_as_the_whole_step(driver: forked.Forked, tmp_path: Path) -> None:
    """The ratios are the workers' own, after the update."""
    found = []
    for chunk in (WHOLE, 1):
        driver.call("reset").get()
        lines, ratios = driver.call("traced", "etr-bypass", tmp_path / str(chunk), chunk).get()
        assert [line["group"] for line in lines] == [0] * 4 + [1] * 4
        assert [line["ratio"] for line in lines] == [pytest.approx(r, rel=1e-4) for r in ratios]
        assert any(abs(r - 1) > 0.05 for line in lines for r in line["ratio"])
        found.append(lines)
    for one, other in zip(*found, strict=True):
        for key in ("tokens", "reward", "cut"):
            assert one[key] == other[key], key
        for key in ("advantage", "ratio", "low", "high"):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key

"""A training step of a model of images on NeMo-RL's own DTensor v2 worker, against one process."""

from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from layouts import Layout
from test_workers import Limits, check_forward, check_updates

LAYOUT = Layout("dtensor-plain")


@pytest.fixture(scope="module")
def driver(imported: None, folder: Path) -> Iterator[forked.Forked]:
    """A pictured.Pictured, in a process of its own."""

    def make() -> object:
        import pictured

        from nemo_algos.engines.nemo import worker_env

        model = pictured.saved(folder / "models")
        worker = worker_env.register_worker("dtensor_worker")
        cluster = forked.cluster(LAYOUT.ranks)
        return pictured.Pictured("dtensor", model, cluster, worker, LAYOUT.overrides)

    process = forked.Forked(make)
    process.built.get()
    yield process
    process.end()


@pytest.mark.parametrize("method", ["grpo", "etr", "quatro", "erpo", "apmpo", "etr-bypass"])
def test_a_method_trains_on_pictures_as_one_process(driver: forked.Forked, method: str) -> None:
    limits = Limits(*driver.call("limits").get())
    driver.call("reset").get()
    check_forward(driver.call("errors").get(), limits)
    check_updates(driver.call("updates", method).get(), limits)


def test_the_picture_is_seen(driver: forked.Forked) -> None:
    driver.call("reset").get()
    assert driver.call("blind").get() > 0.01

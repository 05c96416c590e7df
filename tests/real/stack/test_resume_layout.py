"""Megatron's checkpoint by NeMo-RL's Policy, of one tensor parallelism, resumed under another."""

from pathlib import Path
from typing import Any

import driver
import forked
import models
from layouts import Layout

ADAM = "policy.megatron_cfg.optimizer.optimizer=adam"  # whose state is more than a step


class Resumed(driver.Driver):
    def save(self, folder: Path) -> None:
        self.policy.save_checkpoint(str(folder / "weights"), str(folder / "optimizer"))


def started(name: str, folder: Path, saved: Path | None = None) -> forked.Forked:
    """saved: of the checkpoint to go on from."""
    layout = Layout(name)
    paths = {} if saved is None else {f"{k}_path": saved / k for k in ("weights", "optimizer")}

    def make() -> Any:
        from nemo_algos.engines.nemo import worker_env

        worker = worker_env.register_worker(f"{layout.backend}_worker")
        model = models.saved(layout.kind, folder / "models")
        cluster, overrides = forked.cluster(layout.ranks), (*layout.overrides, ADAM)
        return Resumed(layout.backend, model, cluster, worker, overrides, **paths)

    return forked.Forked(make)


def test_two_ranks_of_a_tensor_become_two_of_data(
    imported: None, folder: Path, tmp_path: Path
) -> None:
    first = started("megatron-tp", folder)
    before = first.call("forward").get()[0]
    first.call("updates", "grpo").get()
    first.call("save", tmp_path).get()
    at_save = first.call("forward").get()[0]
    first.call("updates", "erpo").get()
    later = first.call("forward").get()[0]
    first.end()
    second = started("megatron-plain", folder, tmp_path)
    resumed = second.call("forward").get()[0]
    second.call("updates", "erpo").get()
    resumed_later = second.call("forward").get()[0]
    second.end()
    assert (at_save - before).abs().max() > 0.05 and (later - at_save).abs().max() > 0.05
    assert (resumed - at_save).abs().max() < 1e-5
    assert (resumed_later - later).abs().max() < 1e-4

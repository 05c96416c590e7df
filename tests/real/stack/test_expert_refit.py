"""Experts through NeMo-RL's refit into a real vLLM.

A file of its own: a process's first engine decides whether there is a group of experts.
"""

from pathlib import Path

import models
import pytest
from engine_here import Engine
from trainer import SAME, Trainer


class Mixture(Trainer):
    """Its weights have the names of the files on disk, as NeMo-RL's workers send them."""

    @property
    def weights(self) -> dict[str, models.Tensor]:
        return models.named(self.model)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved("experts", tmp_path_factory.mktemp("models"))


def test_experts_arrive(model: Path) -> None:
    trainer, engine = Mixture(model), Engine(model)
    engine.prepare(trainer)
    trainer.move(seed=1)
    assert trainer.distance(engine.sample()) > 0.1
    assert engine.by_zmq(trainer.weights.items())
    engine.llm.reset_prefix_cache()
    assert trainer.distance(engine.sample()) < SAME
    engine.close()

"""Every method that has no recipe of its own trains: five steps, finite, with its metrics.

By default some: what differs between them is held to numbers in tests/algorithms.
"""

import math

import pytest
import torch
import trainers
from matrix import some_of

from nemo_algos.algorithms.methods import METHODS, STUDIED
from nemo_algos.engines.local.schema import GenerationSection, Shape
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy

GENTLE = {"name": "torch.optim.AdamW", "kwargs": {"lr": 1e-4}}  # dr_grpo's gradient is small
HALF = ("grpo.num_prompts_per_step=4", "policy.train_global_batch_size=8")
# with rewards, prompts, a teacher or turns of their own: test_extensions, test_teacher, test_turns
ELSEWHERE = {"gdpo", "spo", "ema_baseline", "opd", "turn_rloo", "turn_etr", "turn_quatro"}
STEPS = {"pass_at_k": 12}  # most of its groups are flat
OWN = dict.fromkeys(("high_entropy", "clip_cov", "m2po"), "chosen_share")


def small():
    """Of one layer, with responses of six tokens."""
    torch.manual_seed(0)
    model = Tiny(Shape(layers=1))
    model.embed.weight.data *= 2
    return TinyPolicy(model, GenerationSection(max_new_tokens=6))


TRAINED = [name for name in METHODS if name not in {*STUDIED, *ELSEWHERE}]


@pytest.mark.parametrize("name", some_of(TRAINED, 6))
def test_it_trains(name):
    made = trainers.trainer(*HALF, method=name, optimizer=GENTLE, trained=small())
    before = trainers.weights(made)
    steps = [made.step() for _ in range(STEPS.get(name, 5))]
    assert all(math.isfinite(value) for metrics in steps for value in metrics.values())
    assert 1e-4 < float((trainers.weights(made) - before).abs().max()) < 0.1
    for metrics in steps:
        assert 0 <= metrics.get("clip/fraction", 0) <= 1  # none where no response has an advantage
        assert -1e-6 < metrics.get("kl/old", 0) < 0.5 and 0.1 < metrics.get("ratio/mean", 1) < 10
        own = [k for k in metrics if k.startswith(f"{name}/")]
        assert own == ([f"{name}/{OWN[name]}"] if name in OWN else [])

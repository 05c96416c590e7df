"""torch's classes that `check` takes for right without torch: what rehearsing them says as well."""

import importlib.util
import json
import random
from pathlib import Path

import pytest

from nemo_algos.engines.local.schema import Milestones, TorchClass
from nemo_algos.engines.local.updates import rehearse
from nemo_algos.preflight.check.local.resources import FILE, known_to_work

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("torch_classes", ROOT / "scripts/torch_classes.py")
assert SPEC and SPEC.loader
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
TABLE = json.loads(FILE.read_text())
STEP = "torch.optim.lr_scheduler.StepLR"


def test_the_table_is_current():
    assert FILE.read_text() == script.written(), "run scripts/torch_classes.py"


def component(name, **kwargs):
    return TorchClass(name=name, kwargs=kwargs)


def drawn(rng, name, known):
    """The class with some of its arguments, each at an end of its range or within."""
    chosen = [k for k in known["takes"] if k in known["needs"] or rng.random() < 0.5]
    kwargs = {k: _number(rng, *known["takes"][k]) for k in chosen}
    return component(name, **kwargs)


def _number(rng, low, high, length):
    draw = rng.randint if isinstance(low, int) else rng.uniform
    one = [rng.choice([low, high, draw(low, high)]) for _ in range(length or 1)]
    return one if length else one[0]


@pytest.mark.parametrize("optimizer", TABLE["optimizers"])
def test_what_is_known_to_work_works(optimizer):
    rng = random.Random(optimizer)
    for _ in range(30):
        schedulers = rng.choices(list(TABLE["schedulers"].items()), k=rng.randint(0, 3))
        made = [drawn(rng, *scheduler) for scheduler in schedulers]
        ends = Milestones(milestones=sorted(rng.sample(range(1, 9), max(len(made) - 1, 0))))
        given = drawn(rng, optimizer, TABLE["optimizers"][optimizer]), [*made, ends]
        assert known_to_work(*given)
        assert rehearse(*given) == [], given


@pytest.mark.parametrize(
    ("kwargs", "scheduler"),
    [
        ({"lr": 0.0}, []),
        ({"lr": -1.0}, []),
        ({"lr": float("nan")}, []),
        ({"lr": "1e-6"}, []),
        ({"rate": 0.1}, []),
        ({"betas": [1.5, 0.9]}, []),
        ({"betas": 0.9}, []),
        ({}, [component(STEP)]),
        ({}, [component(STEP, step_size=0)]),
        ({}, [component("torch.optim.SGD")]),
        ({}, [component("torch.optim.lr_scheduler.OneCycleLR", max_lr=0.1)]),
        ({}, [component(STEP, step_size=3), component(STEP, step_size=3)]),
        ({}, [component(STEP, step_size=3), Milestones(milestones=[2])]),
    ],
)
def test_what_is_wrong_is_left_to_torch(kwargs, scheduler):
    given = component("torch.optim.AdamW", **kwargs), scheduler
    assert not known_to_work(*given) and rehearse(*given) != []


@pytest.mark.parametrize("name", ["torch.optim.LBFGS", "torch.optim.SparseAdam", "os.system"])
def test_a_class_that_cannot_step_is_not_known(name):
    assert not known_to_work(component(name), [])

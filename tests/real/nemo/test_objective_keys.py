"""Every key of NeMo-RL that can change the objective is honoured, refused, or neutral.

And what is said of it is so.
"""

from fnmatch import fnmatchcase
from typing import Any

import checkout
import pytest
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from objective_keys import DECIDED, HONOURED, NEUTRAL, REFUSED
from shipped_run import compose

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.config import ConfigError
from nemo_algos.engines.nemo import trial
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.preflight.check import keys as nemo_rls
from nemo_algos.preflight.check.judge import check

SECTIONS = ("loss_fn", "grpo", "policy")
BASES = ("grpo_math_1B.yaml", "grpo_math_1B_megatron.yaml")


def keys() -> set[str]:
    """What this NeMo-RL declares, what its example configs have, and what its code reads beside."""
    release = checkout.release()
    found = {*release.declared, *nemo_rls.UNDECLARED}
    for name in BASES:
        found |= set(nemo_rls._paths(release.configs[name]))  # pyright: ignore
    return {key for key in found if key.partition(".")[0] in SECTIONS}


def verdicts(key: str) -> list[str]:
    exact = [name for name in ("HONOURED", "DECIDED", "REFUSED") if key in globals()[name]]
    return exact or [p for p in NEUTRAL if fnmatchcase(key, p)]


def test_every_key_has_a_verdict(ref: str) -> None:
    found = {key: verdicts(key) for key in keys()}
    assert len(found) > 300
    assert {k: v for k, v in found.items() if not v} == {}
    used = {v for of in found.values() for v in of}
    assert ref != "main" or not set(NEUTRAL) - used
    assert set(HONOURED) | set(DECIDED) <= set(found)


@pytest.mark.parametrize("key", REFUSED)
def test_a_refused_key_is_refused_by_the_launcher_and_by_check(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(*REFUSED[key])
    problems = {(problem.path, problem.message) for problem in error.value.findings}
    problems = {(path, m) for path, m in problems if not m.startswith("unknown key")}  # in v0.7.0
    paths = {path for path, _ in problems}
    wanted = {key, key.rpartition(".")[0], *(o.partition("=")[0] for o in REFUSED[key])}
    assert paths & wanted, error.value
    found = check("nemo_rl.yaml", REFUSED[key], checkout.release())
    assert problems <= {(f.path, f.message) for f in found if f.severity == "error"}


@pytest.mark.parametrize("key", DECIDED)
def test_a_key_that_the_method_decides_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: the method"):
        compose(f"{key}={str(DECIDED[key]).lower()}")


def value(name: str, settings: dict[str, Any]) -> float:
    """The loss of a method under these keys; the sampler is not the trainer here."""
    algorithm = build(name)
    loss = AlgorithmLoss(ClippedPGLossConfig(**settings), algorithm)
    return trial.step(grpo.grpo_train, Estimator(algorithm), loss)[0]


@pytest.mark.parametrize("key", HONOURED)
@pytest.mark.parametrize("name", STUDIED)
def test_an_honoured_key_changes_every_methods_loss(name: str, key: str) -> None:
    base, change = HONOURED[key]
    assert value(name, base) != pytest.approx(value(name, base | change), rel=1e-4)

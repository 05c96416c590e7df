"""NeMo-RL's own step with two responses whose loss is known: what computes another is refused.

The responses are those of `trial`: tokens, rewards and log-probs are its constants.
"""

import math
from collections.abc import Callable
from typing import Any

from nemo_rl.algorithms.loss import ClippedPGLossConfig

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import trial, versions
from nemo_algos.engines.nemo.derived_config import SELF_TEST, method_keys
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss

# method: the loss, and its derivative along `trial.DIRECTION`. The methods are those for which
# independent formulas exist (tests/real/stack/oracle.py), which tests/real/nemo/test_self_test.py
# holds these numbers against. Whatever the run's method is, all are tried: each uses other parts of
# NeMo-RL's step.
ANSWERS = {
    "grpo": (-0.0442126585, -0.450265485),
    "gspo": (-0.0707105641, -0.707105753),
    "gmpo": (-0.0928175175, -0.445364466),
    "gpg": (0.0700000167, -0.6),
    "cispo": (0.116375833, -0.765042464),
    "etr": (-0.0770021262, -0.450265485),
    "quatro": (-0.218049715, -0.396202269),
    "erpo": (-0.0578915055, -0.622204351),
    "apmpo": (-0.0812732813, -0.685444644),
}
PENALTY = 0.5  # tried where the run has a KL penalty, whatever the size of the run's
# what a k3 penalty adds, by what the loss is a mean of
ADDED = {"token": (0.0392049727, -0.0950000286), "sequence": (0.0409449798, -0.0875000258)}
# Relative. A choice: NeMo-RL's float32 steps are within 1e-5 in tests/real/nemo/test_self_test.py,
# and a wrong formula is off by far more.
TOLERANCE = 1e-4
ONLY_THE_PENALTY = (
    "Only the KL penalty differs: all is right with `loss_fn.reference_policy_kl_penalty: 0`."
)
STAND_IN = " (This comes from a stand-in of the test, so this NeMo-RL may be right.)"
SKIP = f"To start without this test, set `{SELF_TEST}: false`."

# runs a step of NeMo-RL's trainer up to the workers' loss (`trial`): the loss, and its derivative
Step = Callable[[Estimator, AlgorithmLoss], tuple[float, float]]


def check(name: str, step: Step, penalty: bool = True) -> None:
    """Raises ConfigError with every method that has another answer.

    name: of NeMo-RL's trainer; step: of that trainer; penalty: whether the run has a penalty on the
    KL to the reference, so that one is tried.
    """
    unread = {*method_keys(build("grpo"))} - ClippedPGLossConfig.model_fields.keys()
    versions.refuse([f"ClippedPGLossConfig has no {key}" for key in sorted(unread)])
    faults = _faults(name, step, penalty)
    if faults and penalty and not _faults(name, step, penalty=False):
        faults.append(ONLY_THE_PENALTY)
    versions.refuse([*faults, SKIP] if faults else [])


def _faults(name: str, step: Step, penalty: bool) -> list[str]:
    found = (_fault(method, step, penalty) for method in ANSWERS)
    # what breaks the step breaks it for every method: that is said once
    return [*dict.fromkeys(f"a step of {name}{fault}" for fault in found if fault)]


def _fault(method: str, step: Step, penalty: bool) -> str | None:
    try:
        found = answer(method, step, penalty)
    except Exception as error:  # whatever NeMo-RL's code raises
        said = f": {type(error).__name__}: {error}"
        return said + STAND_IN if trial.of_stand_in(error) else said
    wanted = known(method, penalty)
    if all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(found, wanted, strict=True)):
        return None
    numbers = "loss {:.4f} and slope {:.4f}"
    asked = f" and a KL penalty of {PENALTY}" if penalty else ""
    return (
        f" with {method}{asked} has {numbers.format(*found)} instead of {numbers.format(*wanted)}"
    )


def known(method: str, penalty: bool) -> tuple[float, float]:
    """The right answer; penalty: with a k3 penalty of PENALTY."""
    added = ADDED[build(method).mean] if penalty else (0.0, 0.0)
    return ANSWERS[method][0] + added[0], ANSWERS[method][1] + added[1]


def answer(method: str, step: Step, penalty: bool = True) -> tuple[float, float]:
    """The loss of a method by a step of NeMo-RL's, and its derivative along `trial.DIRECTION`.

    penalty: with a k3 penalty of PENALTY.
    """
    algorithm = build(method)
    size = PENALTY if penalty else 0.0
    section: Any = {"reference_policy_kl_penalty": size, "reference_policy_kl_type": "k3"}
    loss = AlgorithmLoss(ClippedPGLossConfig(**section), algorithm)
    return step(Estimator(algorithm, group_size=2, batch_size=2), loss)

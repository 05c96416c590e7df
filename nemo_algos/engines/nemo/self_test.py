"""NeMo-RL's own step with two responses whose loss is known: what computes another is refused."""

import math
from collections.abc import Callable
from typing import Any

from nemo_rl.algorithms.loss import ClippedPGLossConfig

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import method_keys
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss

# method: the loss with a k3 penalty of 0.5, and its derivative along DIRECTION (by the independent
# formulas of tests/real/stack/oracle.py: tests/real/nemo/test_self_test.py)
ANSWERS = {
    "grpo": (-0.00326767872, -0.537765511),
    "gspo": (-0.0297655843, -0.794605779),
    "gmpo": (-0.0518725377, -0.532864492),
    "gpg": (0.109204989, -0.695000029),
    "cispo": (0.155580806, -0.860042493),
    "etr": (-0.0360571464, -0.537765511),
    "quatro": (-0.177104735, -0.483702294),
    "erpo": (-0.0186865497, -0.717204307),
    "apmpo": (-0.0403283015, -0.77294467),
}
TOLERANCE = 1e-4  # relative; losses are float32

Step = Callable[[Estimator, AlgorithmLoss], tuple[float, float]]


def check(name: str, step: Step) -> None:
    """Raises ImportError with every method that has another answer.

    name: of NeMo-RL's trainer; step: runs its own step, up to the workers' loss (`trial`).
    """
    unread = {*method_keys(build("grpo"))} - ClippedPGLossConfig.model_fields.keys()
    versions.refuse([f"ClippedPGLossConfig has no {key}" for key in sorted(unread)])
    faults = [fault for method in ANSWERS if (fault := _fault(method, step))]
    versions.refuse([f"a step of {name}{fault}" for fault in dict.fromkeys(faults)])


def _fault(method: str, step: Step) -> str | None:
    try:
        found = answer(method, step)
    except Exception as error:  # whatever NeMo-RL's code raises
        return f": {type(error).__name__}: {error}"
    pairs = zip(found, ANSWERS[method], strict=True)
    if all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs):
        return None
    numbers = "loss {:.4f} and slope {:.4f}"
    wanted = numbers.format(*ANSWERS[method])
    return f" with {method} has {numbers.format(*found)} instead of {wanted}"


def answer(method: str, step: Step) -> tuple[float, float]:
    """The loss of a method by a step of NeMo-RL's, and its derivative along `trial.DIRECTION`."""
    algorithm = build(method)
    section: Any = {"reference_policy_kl_penalty": 0.5, "reference_policy_kl_type": "k3"}
    loss = AlgorithmLoss(ClippedPGLossConfig(**section), algorithm)
    return step(Estimator(algorithm, group_size=2, batch_size=2), loss)

"""Two responses whose loss is known: a NeMo-RL that computes something else is refused."""

import math
from collections.abc import Callable
from typing import Any

import torch
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import advantage_call, versions
from nemo_algos.engines.nemo.advantage_call import AdvantageCall
from nemo_algos.engines.nemo.derived_config import method_keys
from nemo_algos.engines.nemo.estimator import Estimator, result_type
from nemo_algos.engines.nemo.loss import AlgorithmLoss

# method: the loss with a k3 penalty of 0.5, and its derivative along DIRECTION (direct formulas in
# tests/real/nemo/test_self_test.py)
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

# one prompt and three tokens, of which the second response has two
REWARDS = torch.tensor([1.0, 0.0])
MASK = torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
OLD = torch.tensor([[0.0, -1.0, -0.5, -2.0], [0.0, -0.7, -1.2, 0.0]])
CURRENT = OLD + torch.tensor([[0.0, 0.5, -0.1, -0.4], [0.0, -0.6, -0.3, 0.0]])
# not OLD: a loss that divides by the sampler's must give another number
SAMPLER = OLD + torch.tensor([[0.0, 0.3, -0.25, 0.15], [0.0, -0.2, 0.1, 0.0]])
REFERENCE = OLD + torch.tensor([[0.0, 0.1, -0.2, 0.05], [0.0, -0.3, 0.2, 0.0]])
ENTROPY = torch.tensor([[0.0, 0.5, 1.0, 1.5], [0.0, 0.8, 0.2, 0.0]])
DIRECTION = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 1.0, 0.0]])

LOGPROBS = {"logprobs_policy": OLD, "logprobs_reference": REFERENCE}
GIVEN: dict[str, Any] = {
    **LOGPROBS,
    "prompt_ids": torch.ones(2, 1, dtype=torch.long),
    "rewards": REWARDS,
    "mask": MASK,
    "repeated_batch": {},
    "teacher_logprobs": None,
    "prev_logprobs": OLD,
    "generation_logprobs": SAMPLER,
    "sample_mask": torch.ones(2),
    "valid_mask": torch.ones(2),
}


def check(trainer: Callable[..., Any]) -> None:
    """Raises ImportError that names every method with another answer.

    trainer: calls the estimator, and takes the advantages of what it returns.
    """
    call = _call(trainer)
    unread = {*method_keys(build("grpo"))} - ClippedPGLossConfig.model_fields.keys()
    versions.refuse([f"ClippedPGLossConfig has no {key}" for key in sorted(unread)])
    versions.refuse([fault for name in ANSWERS if (fault := _fault(name, call))])


def _call(trainer: Callable[..., Any]) -> AdvantageCall:
    call = advantage_call.of(trainer)
    unknown = [name for name in call.keywords if name not in GIVEN]
    name = f"{trainer.__module__}.{trainer.__qualname__}"
    versions.refuse([f"{name} gives the estimator {x}, which is unknown" for x in unknown])
    try:
        call.taken(result_type()(OLD))
    except Exception as error:  # whatever NeMo-RL's code raises
        what = f"{name} does not take what its estimators return"
        versions.refuse([f"{what}: {type(error).__name__}: {error}"])
    return call


def _fault(name: str, call: AdvantageCall) -> str | None:
    try:
        found = answer(name, call)
    except Exception as error:  # whatever NeMo-RL's code raises
        return f"the loss of {name} raises {type(error).__name__}: {error}"
    pairs = zip(found, ANSWERS[name], strict=True)
    if all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs):
        return None
    numbers = "loss {:.4f} and slope {:.4f}"
    return f"{name} has {numbers.format(*found)} instead of {numbers.format(*ANSWERS[name])}"


def answer(name: str, call: AdvantageCall) -> tuple[float, float]:
    """The loss of a method, and its derivative along DIRECTION; call: as a trainer's."""
    algorithm = build(name)
    section: Any = {"reference_policy_kl_penalty": 0.5, "reference_policy_kl_type": "k3"}
    loss = AlgorithmLoss(ClippedPGLossConfig(**section), algorithm)
    logprobs = CURRENT[:, 1:].clone().requires_grad_()
    value, _ = loss(
        logprobs, _batch(Estimator(algorithm), call), torch.tensor(2.0), torch.tensor(5.0)
    )
    (gradient,) = torch.autograd.grad(value, logprobs)
    return value.item(), float((gradient * DIRECTION).sum())


def _batch(estimator: Estimator, call: AdvantageCall) -> dict[str, Tensor]:
    estimator.entropy = ENTROPY
    # the single controller gives its log-probs by `**kwargs`
    named = {name: GIVEN[name] for name in (*call.keywords, *LOGPROBS)}
    advantages = call.taken(estimator.compute_advantage(**named))
    return {
        "advantages": advantages,
        "prev_logprobs": OLD,
        "generation_logprobs": SAMPLER,
        "reference_policy_logprobs": REFERENCE,
        "token_mask": MASK,
        "sample_mask": torch.ones(2),
        **estimator.signals_for(advantages),
    }

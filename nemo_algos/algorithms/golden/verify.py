"""This code against a golden file of float64 numbers; docs/verify.md has its format."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build, find
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.golden import conform
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.riders.loss_config import LossConfig
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.untrusted import content, from_json, plain, refuse_code

FORMAT = "A golden file has version, tolerance and cases (docs/verify.md)."
TOKEN_INPUTS = ("old_logprobs", "ref_logprobs", "entropy")
OPTIONAL = (*TOKEN_INPUTS, "gen_logprobs", "drift")


class GoldenRollouts(Rollouts):
    """A golden file's numbers test formulas; they need be no logarithms of probabilities."""

    largest_logprob = float("inf")


class Error(NamedTuple):
    """The largest |got - expected| / max(1, |expected|) of one quantity in one case."""

    case: str
    method: str
    quantity: str
    error: float


def read(path: Path) -> dict[str, Any]:
    """A golden file, .json or .json.gz. Raises ValueError when it is not one."""
    try:
        golden = from_json(plain(path, content(path)), str(path))
    except ValueError as error:
        raise ValueError(f"{error}: {FORMAT}") from None
    cases = golden.get("cases") if isinstance(golden, dict) else None
    if not cases or not isinstance(cases, list):
        raise ValueError(f"{path} does not contain cases. {FORMAT}")
    shared = golden.get("inputs", {})
    return golden | {"cases": [_with_inputs(case, shared) for case in cases]}


def _with_inputs(case: Any, shared: Any) -> Any:
    """Where it only names them."""
    named = isinstance(case, dict) and isinstance(case.get("inputs"), str)
    return case | {"inputs": shared.get(case["inputs"])} if named else case


def errors_of(case: dict[str, Any]) -> list[Error]:
    """The error of every quantity of one case. Raises ValueError for what is no case."""
    try:
        name, method, mask = case["name"], case["method"], case["inputs"]["mask"]
        refuse_code([method, case["params"]], f"case {str(name)[:60]}")
        expected = {**case.get("signals", {}), **case["expected"]}
        got = compute(method, case["params"], case["inputs"])
        masks = dict.fromkeys(expected, mask) | {"grad": None}
        errors = {k: _error(got[k], x, masks[k]) for k, x in expected.items()}
        return [Error(name, method, kind, e) for kind, e in errors.items()]
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"case {str(case)[:60]} ... cannot be read ({reason}). {FORMAT}") from None


def compute(
    method: str,
    params: dict[str, Any],
    inputs: dict[str, Any],
    signals: dict[str, Any] | None = None,
    counts: dict[str, int] | None = None,
) -> dict[str, Tensor]:
    """loss, grad [B,S], the signals, reports and metrics, in float64.

    A worker's inputs have no rewards: then signals are the driver half's, of these rows, and counts
    those of the whole batch (docs/conformance.md).
    """
    params, penalty = {"name": method, **params}, 0.0
    if "kl_coef" not in find(method).params.model_fields:
        penalty = params.pop("kl_coef", 0.0)
    config, algorithm = LossConfig(reference_policy_kl_penalty=penalty), build(params)
    rollouts, logprobs = _rollouts(inputs), _float64(inputs["logprobs"]).requires_grad_()
    if "rewards" in inputs:
        driven, whole = algorithm.signals(rollouts, {}), Counts.of(rollouts.mask)
    else:
        assert signals is not None and counts is not None
        driven, whole = _signals(algorithm, signals), Counts(counts["sequences"], counts["tokens"])
    loss = policy_loss(algorithm, logprobs, rollouts, driven, whole, config)
    loss.value.backward()
    assert logprobs.grad is not None
    bounds = zip(("low", "high"), (driven.low, driven.high), strict=True)
    finite = {k: v for k, v in bounds if isinstance(v, Tensor) or v < float("inf")}
    columns = {"advantages": driven.advantages, **finite, **driven.extras}
    numbers = {**driven.metrics, **loss.stats.summary()}
    return {
        **{k: torch.as_tensor(v, dtype=torch.float64) for k, v in numbers.items()},
        "loss": loss.value.detach(),
        "grad": logprobs.grad,
        **{k: _column(v, rollouts.mask) for k, v in columns.items()},
        **driven.reports,
    }


def _rollouts(inputs: dict[str, Any]) -> Rollouts:
    """Without groups and rewards where they are not given."""
    mask = torch.tensor(inputs["mask"]).bool()
    group = list(inputs.get("group", range(len(mask))))
    labels = {label: i for i, label in enumerate(dict.fromkeys(group))}
    parts = {k.split("/")[1]: _float64(v) for k, v in inputs.items() if k.startswith("reward/")}
    given: dict[str, Any] = {k: _float64(inputs[k]) for k in OPTIONAL if k in inputs}
    return GoldenRollouts(
        group=torch.tensor([labels[label] for label in group]),
        rewards=_float64(inputs.get("rewards", [0.0] * len(mask))),
        mask=mask,
        reward_parts=parts or None,
        prompt=_float64(inputs["prompt"]).long() if "prompt" in inputs else None,
        **given,
    )


def _signals(algorithm: Algorithm, given: dict[str, Any]) -> Signals:
    columns = {k: _float64(v) for k, v in given.items()}
    columns = {k: v[:, None] if v.dim() == 1 else v for k, v in columns.items()}
    low, high = algorithm.constant_bounds or (columns["low"], columns["high"])
    extras = {k: v for k, v in columns.items() if k not in ("advantages", "low", "high")}
    return Signals(columns["advantages"], low, high, extras)


def _column(value: Tensor | float, mask: Tensor) -> Tensor:
    """A number, [B], or [B,S] with 0 off the mask."""
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.shape == mask.shape and mask.shape[1] > 1:
        return value.where(mask, 0.0)
    return value[:, 0] if value.dim() else value


def _float64(values: Any) -> Tensor:
    """JSON has no NaN: null stands for it."""
    return torch.from_numpy(np.array(values, dtype=float))


def _error(got: Tensor, expected: Any, mask: Any = None) -> float:
    """As the runner's; infinite for another shape. Without a mask all of it is compared."""
    tokens = np.ones(got.shape) if mask is None else np.array(mask)
    try:
        return conform.error(got, expected, tokens.astype(bool))
    except ValueError:
        return float("inf")

"""This code against a golden file of float64 numbers; README.md has its format."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nemo_algos.algorithms.build import build, find
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.algorithms.shapes import Mask
from nemo_algos.untrusted import content, from_json, plain, refuse_code

FORMAT = "A golden file has version, tolerance and cases (nemo_algos/algorithms/golden/README.md)."
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
    if named:
        return case | {"inputs": shared.get(case["inputs"])}
    return case


def errors_of(case: dict[str, Any]) -> list[Error]:
    """The error of every quantity of one case. Raises ValueError for what is no case."""
    try:
        name = case["name"]
        method = case["method"]
        mask = case["inputs"]["mask"]
        refuse_code([method, case["params"]], f"case {str(name)[:60]}")
        expected = {**case.get("signals", {}), **case["expected"]}
        got = compute(method, case["params"], case["inputs"])
        masks = dict.fromkeys(expected, mask) | {"grad": None}
        errors = {k: _error(got[k], x, masks[k]) for k, x in expected.items()}
        return [Error(name, method, kind, e) for kind, e in errors.items()]
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"case {str(case)[:60]} ... cannot be read ({type(error).__name__}: {error}). {FORMAT}"
        ) from None


def compute(method: str, params: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
    """loss, grad [B,S], the signals, reports and metrics, in float64."""
    params = {"name": method, **params}
    penalty = 0.0
    if "kl_coef" not in find(method).params.model_fields:
        penalty = params.pop("kl_coef", 0.0)
    kind = params.pop("kl_type", "k3")
    config = LossConfig(reference_policy_kl_penalty=penalty, reference_policy_kl_type=kind)
    algorithm = build(params)
    rollouts = _rollouts(inputs)
    logprobs = _float64(inputs["logprobs"]).requires_grad_()
    driven = algorithm.signals(rollouts, {})
    counts = Counts.of(rollouts.mask)
    loss = policy_loss(algorithm, logprobs, rollouts, driven, counts, config)
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
    parts = {}
    for k, v in inputs.items():
        if k.startswith("reward/"):
            parts[k.split("/")[1]] = _float64(v)
    given: dict[str, Any] = {}
    for k in OPTIONAL:
        if k in inputs:
            given[k] = _float64(inputs[k])
    return GoldenRollouts(
        group=torch.tensor([labels[label] for label in group]),
        rewards=_float64(inputs.get("rewards", [0.0] * len(mask))),
        mask=mask,
        reward_parts=parts or None,
        prompt=_float64(inputs["prompt"]).long() if "prompt" in inputs else None,
        **given,
    )


def _column(value: Tensor | float, mask: Mask) -> Tensor:
    """A number, [B], or [B,S] with 0 off the mask."""
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.shape == mask.shape and mask.shape[1] > 1:
        return value.where(mask, 0.0)
    return value[:, 0] if value.dim() else value


def _float64(values: Any) -> Tensor:
    """JSON has no NaN: null stands for it."""
    return torch.from_numpy(np.array(values, dtype=float))


def error(got: Any, expected: Any, mask: Any) -> float:
    """The largest |got - expected| / max(1, |expected|), 1e308 for a NaN; of [B,S] on the mask.

    got, expected: numbers, [B] or [B,S], where null in `expected` is 0. mask: [B,S] bool. Raises
    ValueError where their shapes differ.
    """
    got = np.asarray(got, dtype=float)
    expected = np.nan_to_num(np.array(expected, dtype=float))
    if 2 in (got.ndim, expected.ndim):
        got = _on_mask(got, mask)
        expected = _on_mask(expected, mask)
    errors = np.abs(got - expected) / np.maximum(np.abs(expected), 1)
    return float(np.nan_to_num(errors, nan=1e308).max(initial=0))


def _on_mask(values: Any, mask: Any) -> Any:
    """The values at the mask's tokens; of [B] each sequence's at all of its tokens."""
    if values.ndim == 1:
        values = values[:, None]
    return np.broadcast_to(values, mask.shape)[mask]


def _error(got: Tensor, expected: Any, mask: Any = None) -> float:
    """The error on the mask, or of all values without one; infinite for another shape."""
    tokens = np.ones(got.shape) if mask is None else np.array(mask)
    try:
        return error(got, expected, tokens.astype(bool))
    except ValueError:
        return float("inf")

"""`nemo-algos verify FILE`: this code against a golden file of float64 numbers (format:
docs/verify.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_algos.core.surrogate import Counts
from nemo_algos.methods.build import build
from nemo_algos.methods.loss import LossConfig, policy_loss
from nemo_algos.rollouts import Rollouts

TOKEN_INPUTS = ("old_logprobs", "ref_logprobs", "entropy")


class Error(NamedTuple):
    """The largest |got - expected| / max(1, |expected|) of one quantity in one case."""

    case: str
    method: str
    quantity: str
    error: float


def read(path: Path) -> dict[str, Any]:
    """A golden file, .json or .json.gz. Raises ValueError when it is not one."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt") as file:
            golden = json.load(file)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path} as a golden file: {error}") from None
    if not isinstance(golden, dict) or not golden.get("cases"):
        raise ValueError(f"{path} holds no cases: a golden file has version, tolerance, cases")
    return golden


def errors_of(case: dict[str, Any]) -> list[Error]:
    """Every quantity of one case."""
    got, expected = compute(case["method"], case["params"], case["inputs"]), case["expected"]
    return [
        Error(case["name"], case["method"], name, _error(got[name], want))
        for name, want in expected.items()
    ]


def compute(method: str, params: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
    """loss, grad [B,S], advantages [B,S] and the method's extras [B], in float64."""
    params = dict(params)
    config = LossConfig(reference_policy_kl_penalty=params.pop("kl_coef", 0.0))
    algorithm = build({"name": method, **params})
    rollouts = Rollouts(
        group=_labels(inputs["group"]),
        rewards=torch.tensor(inputs["rewards"], dtype=torch.float64),
        mask=torch.tensor(inputs["mask"]).bool(),
        **{k: _float64(inputs[k]) for k in TOKEN_INPUTS},
    )
    logprobs = _float64(inputs["logprobs"]).requires_grad_()
    signals = algorithm.signals(rollouts)
    loss = policy_loss(algorithm, logprobs, rollouts, signals, Counts.of(rollouts.mask), config)
    loss.value.backward()
    assert logprobs.grad is not None
    return {
        "loss": loss.value.detach(),
        "grad": logprobs.grad,
        "advantages": signals.advantages.expand_as(logprobs).where(rollouts.mask, 0.0),
        **{name: extra[:, 0] for name, extra in signals.extras.items()},
        **signals.reports,
    }


def _labels(group: list[Any]) -> Tensor:
    numbers = {label: i for i, label in enumerate(dict.fromkeys(group))}
    return torch.tensor([numbers[label] for label in group])


def _float64(rows: list[list[float | None]]) -> Tensor:
    """JSON has no NaN: null stands for it."""
    nan = float("nan")
    return torch.tensor(
        [[nan if x is None else x for x in row] for row in rows], dtype=torch.float64
    )


def _error(got: Tensor, expected: Any) -> float:
    """null (quatro's lambda of a flat group) counts as 0; a NaN is an infinite error."""
    rows = [0.0 if x is None else x for x in expected] if isinstance(expected, list) else expected
    want = torch.tensor(rows, dtype=torch.float64)
    if got.shape != want.shape:
        return float("inf")
    return float(((got - want).abs() / want.abs().clamp(min=1)).nan_to_num(torch.inf).max())

"""This code against a golden file of float64 numbers; docs/verify.md has its format."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_algos.core.surrogate import Counts
from nemo_algos.objective.build import build
from nemo_algos.objective.loss import LossConfig, policy_loss
from nemo_algos.rollouts import Rollouts

FORMAT = "a golden file has version, tolerance and cases, see docs/verify.md"
TOKEN_INPUTS = ("old_logprobs", "ref_logprobs", "entropy")


class Error(NamedTuple):
    """The largest |got - expected| / max(1, |expected|) of one quantity in one case."""

    case: str
    method: str
    quantity: str
    error: float


def read(path: Path) -> dict[str, Any]:
    """A golden file, .json or .json.gz. Raises ValueError when it is not one."""
    try:
        data = path.read_bytes()
        golden = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError):
        raise ValueError(f"{path} is not JSON, or not whole: {FORMAT}") from None
    cases = golden.get("cases") if isinstance(golden, dict) else None
    if not cases or not isinstance(cases, list):
        raise ValueError(f"{path} holds no cases: {FORMAT}")
    return golden


def errors_of(case: dict[str, Any]) -> list[Error]:
    """The error of every quantity of one case. Raises ValueError for what is no case."""
    try:
        name, method, expected = case["name"], case["method"], case["expected"]
        got = compute(method, case["params"], case["inputs"])
        return [Error(name, method, kind, _error(got[kind], x)) for kind, x in expected.items()]
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"case {str(case)[:60]} ... cannot be read ({reason}): {FORMAT}") from None


def compute(method: str, params: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
    """loss, grad [B,S], advantages [B,S] and the method's extras [B], in float64."""
    params = dict(params)
    config = LossConfig(reference_policy_kl_penalty=params.pop("kl_coef", 0.0))
    algorithm = build({"name": method, **params})
    labels = {label: i for i, label in enumerate(dict.fromkeys(inputs["group"]))}
    rollouts = Rollouts(
        group=torch.tensor([labels[label] for label in inputs["group"]]),
        rewards=torch.tensor(inputs["rewards"], dtype=torch.float64),
        mask=torch.tensor(inputs["mask"]).bool(),
        **{k: _float64(inputs[k]) for k in TOKEN_INPUTS},  # pyright: ignore[reportArgumentType]
    )
    logprobs = _float64(inputs["logprobs"]).requires_grad_()
    signals = algorithm.signals(rollouts, {})
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


def _float64(rows: list[list[float | None]]) -> Tensor:
    """JSON has no NaN: null stands for it."""
    filled = [[float("nan") if x is None else x for x in row] for row in rows]
    return torch.tensor(filled, dtype=torch.float64)


def _error(got: Tensor, expected: Any) -> float:
    """null (quatro's lambda of a flat group) counts as 0; a NaN is an infinite error."""
    rows = [0.0 if x is None else x for x in expected] if isinstance(expected, list) else expected
    want = torch.tensor(rows, dtype=torch.float64)
    if got.shape != want.shape:
        return float("inf")
    return float(((got - want).abs() / want.abs().clamp(min=1)).nan_to_num(torch.inf).max())

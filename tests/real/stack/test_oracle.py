"""The oracle's numbers are the golden file's, which another independent program made."""

import gzip
import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch

GOLDEN = Path(__file__).parents[2] / "golden" / "public.json.gz"
CASES = [c for c in json.loads(gzip.decompress(GOLDEN.read_bytes()))["cases"] if not c["params"]]

pytestmark = pytest.mark.smoke


def batch(given: dict[str, Any]) -> oracle.Batch:
    labels = [*dict.fromkeys(given["group"])]
    old, reference, entropy = (
        torch.tensor(given[name], dtype=torch.float64)
        for name in ("old_logprobs", "ref_logprobs", "entropy")
    )
    return oracle.Batch(
        torch.tensor([labels.index(label) for label in given["group"]]),
        torch.tensor(given["rewards"], dtype=torch.float64),
        torch.tensor(given["mask"]).bool(),
        old,
        reference,
        old,
        entropy,
        torch.ones(len(given["group"])).bool(),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_golden_case(case: dict[str, Any]) -> None:
    method, made = case["method"], batch(case["inputs"])
    logprobs = torch.tensor(case["inputs"]["logprobs"], dtype=torch.float64, requires_grad=True)
    signals = oracle.signals(method, made)
    loss = oracle.Setting().loss(method, logprobs, made.entropy, made, signals)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    wanted = torch.tensor(case["expected"]["grad"], dtype=torch.float64)
    assert float(loss.detach()) == pytest.approx(case["expected"]["loss"], rel=1e-9, abs=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)


def test_every_method_has_cases() -> None:
    from nemo_algos.algorithms.methods import STUDIED

    assert {case["method"] for case in CASES} == {*STUDIED}

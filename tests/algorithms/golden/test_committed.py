"""Every method on twenty batches against numbers that other code computed, once.

tests/golden/oracle.py wrote methods.json.gz from the papers and the specification, without this
package; nothing regenerates it in passing. Bounds that have two sides are unequal there.
"""

import copy
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.golden.verify import GoldenRollouts, compute, errors_of, read
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.record import ClipParams

PATH = Path(__file__).parents[2] / "golden" / "methods.json.gz"
GOLDEN = json.loads(gzip.decompress(PATH.read_bytes()))
TOLERANCE = 1e-9
NEAR_TIES = 1e-8  # what rewards differ by in that batch, where they are equal
# the loss's value is that of A' log pi or r A'; the gradient is the formula's
VALUE_BY_DESIGN = {"kl_cov": "kl_coef", "ipo": "kl_tau"}
# those by turn have an oracle of their own, tests/algorithms/methods/test_by_turn.py
GOLDEN_METHODS = [k for k, method in METHODS.items() if "turn_rewards" not in method.needs]


def rollouts_of(batch, rewards):
    tokens = ("old_logprobs", "ref_logprobs", "gen_logprobs", "entropy")
    return GoldenRollouts(
        group=numbers(batch["group"]),
        rewards=torch.tensor(batch[rewards], dtype=torch.float64),
        mask=torch.tensor(batch["mask"]).bool(),
        reward_parts={k: torch.tensor(v, dtype=torch.float64) for k, v in batch["parts"].items()},
        prompt=numbers(batch["prompt"]),
        drift=torch.tensor(batch["drift"], dtype=torch.float64),
        **{name: float64(batch[name]) for name in tokens},
    )


def numbers(labels):
    """Equal numbers for equal labels."""
    return [sorted(set(labels)).index(label) for label in labels]


def float64(rows):
    """JSON's null is NaN."""
    numbers = [[torch.nan if x is None else x for x in row] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64)


def calls(case):
    """Loss and gradient norm of a first batch and those after it; sum |A| of the first."""
    batch = GOLDEN["batches"][case["batch"]]
    params = {"name": case["method"], **case["params"]}
    penalty = 0.0 if case["method"] == "kl_cov" else params.pop("kl_coef", 0.0)
    algorithm = build(params)
    memory, found, total = {}, [], 0.0
    for rewards in ("rewards", "rewards_next", "rewards")[: 1 + len(case.get("later", []))]:
        rollouts = rollouts_of(batch, rewards)
        signals = algorithm.signals(rollouts, memory)
        logprobs = float64(batch["logprobs"]).requires_grad_()
        counts = Counts.of(rollouts.mask)
        config = LossConfig(reference_policy_kl_penalty=penalty)
        loss = policy_loss(algorithm, logprobs, rollouts, signals, counts, config).value
        loss.backward()
        advantages = signals.advantages.expand_as(rollouts.mask)[rollouts.mask]
        total = total or float(advantages.abs().sum())
        found.append([float(loss.detach()), float(logprobs.grad.norm())])
        memory = signals.memory
    return found, total


@pytest.mark.parametrize("method", GOLDEN_METHODS)
def test_loss_gradient_and_advantages(method):
    cases = [case for case in GOLDEN["cases"] if case["method"] == method]
    assert len({case["batch"] for case in cases}) >= 17
    for case in cases:
        found, total = calls(case)
        want = [[case["loss"], case["grad_norm"]], *case.get("later", [])]
        about = (case["batch"], case["params"])
        tolerance = NEAR_TIES if case["batch"] == "near_ties" else TOLERANCE
        other_value = case["params"].get(VALUE_BY_DESIGN.get(method, ""), 0)
        for got, expected in zip(found, want, strict=True):
            compared = slice(1, 2) if other_value else slice(0, 2)
            near = pytest.approx(expected[compared], rel=tolerance, abs=tolerance)
            assert got[compared] == near, about
        if "advantages" in case:
            assert total == pytest.approx(case["advantages"], rel=tolerance, abs=tolerance), about


PUBLIC = read(Path(__file__).parents[2] / "golden" / "public.json.gz")


@pytest.mark.parametrize("case", PUBLIC["cases"], ids=lambda case: case["name"])
def test_case_agrees_to_1e_12(case):
    for error in errors_of(case):
        assert error.error <= 1e-12, error


def test_a_wrong_number_is_seen():
    case = copy.deepcopy(PUBLIC["cases"][0])
    case["expected"]["loss"] += 1e-5
    assert {e.quantity for e in errors_of(case) if e.error > 1e-6} == {"loss"}


class Penalised(ClipParams):
    kl_coef: float = 1.0


MINE = replace(METHODS["grpo"], name="mine", params=Penalised)


def test_kl_coef_is_the_penalty_unless_the_method_has_one():
    mine = f"{__name__}:MINE"
    inputs = PUBLIC["cases"][0]["inputs"]
    plain, own, penalty = (
        compute(name, params, inputs)["loss"]
        for name, params in ((mine, {}), (mine, {"kl_coef": 0.5}), ("grpo", {"kl_coef": 0.5}))
    )
    assert own == plain and penalty > plain

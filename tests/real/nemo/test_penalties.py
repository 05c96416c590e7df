"""What NeMo-RL does to advantages before it trains: penalties of marked messages, and its clip.

By NeMo-RL's own functions, in its trainers' order.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import batches
import nemo_batch
import pytest
import torch
from nemo_batch import METHODS
from nemo_rl.algorithms import grpo
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.kernel import Component
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.nemo.estimator import Estimator, Forward
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.patches import FACTORY, in_place

INVALID = "grpo.invalid_tool_call_advantage"
MALFORMED = "grpo.malformed_thinking_advantage"
LOW, HIGH = "grpo.advantage_clip_low", "grpo.advantage_clip_high"
CASES = {
    "nothing": {},
    "clip": {LOW: -0.4, HIGH: 0.7},
    "one side": {HIGH: 0.3},
    "penalty": {INVALID: -5.0},
    "two penalties": {INVALID: -5.0, MALFORMED: -2.5},
    "clipped penalty": {INVALID: -5.0, MALFORMED: -0.1, LOW: -1.5},
}
TOKEN_WISE = [name for name in METHODS if not build(name).one_advantage]


class Section(dict):
    """A config's section, in both versions' styles; what is not set is null."""

    __getattr__ = dict.get


def master(own: dict[str, float]) -> Any:
    """What NeMo-RL's functions read of a config that uses NeMo Gym."""
    values = {key.removeprefix("grpo."): value for key, value in own.items()}
    vllm = {"async_engine": True, "expose_http_server": True}
    generation = {"backend": "vllm", "vllm_cfg": vllm}
    return SimpleNamespace(
        grpo=Section(values), env={"should_use_nemo_gym": True}, policy={"generation": generation}
    )


def message_logs(mask: Tensor) -> list[list[dict[str, Any]]]:
    """[B,S] -> two turns a row; marked are the second of rows 0, 3, ... and both of 1, 4, ..."""
    width = mask.shape[1]
    cut = width // 2
    log = []
    for row in range(len(mask)):
        turns: list[dict[str, Any]] = []
        for start, end in ((1, cut), (cut + 1, width)):
            said = {"role": "assistant", "generation_logprobs": torch.zeros(end - start)}
            marks = {"is_invalid_tool_call": row % 3 == 0 and start > 1}
            marks |= {"has_malformed_thinking": row % 3 == 1}
            turns.append({"role": "user", "token_ids": torch.zeros(1)})
            turns.append({**said, **marks, "token_ids": torch.zeros(end - start)})
        log.append(turns)
    return log


def changed(advantages: Tensor, mask: Tensor, own: dict[str, float]) -> Tensor:
    """[B,S]: as grpo_train does."""
    data: Any = {"advantages": advantages}
    config = master(own)
    grpo._apply_configured_message_level_advantage_penalties(data, message_logs(mask), config)
    return grpo._clip_grpo_advantages(data["advantages"], config.grpo)


def computed(algorithm: Algorithm, rollouts: Rollouts, own: dict[str, float]) -> Any:
    """The estimator that NeMo-RL's factory makes of a config, and its advantages [B,S+1]."""
    estimator = Estimator(algorithm)
    with in_place(estimator):
        assert getattr(grpo, FACTORY)(master(own)) is estimator
    data = nemo_batch.batch(algorithm, rollouts)
    estimator.forward = Forward(nemo_batch.shifted(rollouts.entropy))
    advantages = nemo_batch.advantages_of(
        estimator,
        rollouts,
        mask=data["token_mask"],
        logprobs_policy=data["prev_logprobs"],
        logprobs_reference=data["reference_policy_logprobs"],
        generation_logprobs=data["generation_logprobs"],
    )
    return estimator, advantages, data


def token_wise(algorithm: Algorithm) -> Algorithm:
    """One to whose embedded loss an advantage may be given for each token."""
    method, params = algorithm.advantages
    own = replace(method, per_token=method.per_token | {"advantages"})
    return replace(algorithm, advantages=Component(own, params))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TOKEN_WISE)
def test_the_loss_is_of_the_advantages_that_nemo_rl_trains_on(name, case):
    algorithm = build(name)
    rollouts, logprobs = batches.make(seed=2, large=False)
    estimator, advantages, data = computed(algorithm, rollouts, CASES[case])
    trained = changed(advantages, data["token_mask"], CASES[case])
    if "penalt" in case:  # of these rows alone
        moved = (trained != advantages).any(1).nonzero()[:, 0] % 3
        assert set(moved.tolist()) == ({0, 1} if MALFORMED in CASES[case] else {0})
    data |= {"advantages": trained, **estimator.signals_for(trained)}
    value, gradient, _ = nemo_batch.loss_and_gradient(
        AlgorithmLoss(nemo_batch.config(), algorithm), logprobs, data
    )
    signals = replace(algorithm.signals(rollouts, {}), advantages=trained[:, 1:].double())
    leaf = logprobs.clone().requires_grad_()
    counts = Counts.of(rollouts.mask)
    ours = policy_loss(token_wise(algorithm), leaf, rollouts, signals, counts).value
    (wanted,) = torch.autograd.grad(ours, leaf)
    torch.testing.assert_close(value, ours.detach(), rtol=1e-5, atol=1e-7, check_dtype=False)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-7, check_dtype=False)


@pytest.mark.parametrize("case", ["clip", "penalty", "clipped penalty"])
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.flip(0),
        lambda a: a.roll(1, 1),
        lambda a: a[:-1],
        lambda a: a * 1.0001,
        lambda a: a.where(a > -5.0, -4.0),
        lambda a: a.where(torch.arange(a.shape[1]) != 1, torch.nan),
    ],
    ids=["rows", "tokens", "a row less", "scaled", "another penalty", "no number"],
)
def test_whatever_else_changes_them_is_refused(case, change):
    rollouts, _ = batches.make(seed=2, large=False)
    estimator, advantages, data = computed(build("erpo"), rollouts, CASES[case])
    trained = changed(advantages, data["token_mask"], CASES[case])
    other = change(trained)
    if torch.equal(other, trained):  # this case has no -5
        assert case == "clip" or -5.0 not in trained
        return
    with pytest.raises(ValueError, match="reorders the batch"):
        estimator.signals_for(other)


@pytest.mark.parametrize("case", ["clip", "penalty"])
def test_a_change_that_the_config_does_not_ask_for_is_refused(case):
    rollouts, _ = batches.make(seed=2, large=False)
    estimator, advantages, data = computed(build("etr"), rollouts, {})
    with pytest.raises(ValueError, match="reorders the batch"):
        estimator.signals_for(changed(advantages, data["token_mask"], CASES[case]))

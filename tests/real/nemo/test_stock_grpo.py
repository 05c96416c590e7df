"""NeMo-RL's own grpo_train with its own loss and estimator, 3 steps on CPU, in three packing modes.

16 responses a step, 2 data-parallel ranks, 2 optimizer steps a step; the ratio leaves its bounds.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_run import MODES, Run
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss import ClippedPGLossFn
from rounding import rounding

pytestmark = pytest.mark.usefixtures("in_process")
STEPS, UPDATES = 3, 2  # of the optimizer in a step
NEAR = rounding(STEPS * UPDATES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """The trained run of a mode, made once."""
    runs: dict[tuple[str, int], Run] = {}

    def get(mode: str = "unpacked", ranks: int = 2) -> Run:
        if (mode, ranks) not in runs:
            run = Run(tmp_path_factory.mktemp(mode), mode=mode, ranks=ranks)
            run.train()
            runs[mode, ranks] = run
        return runs[mode, ranks]

    return get


def compare(run: Run, other: Run) -> None:
    for name in (
        "loss",
        "grad_norm",
        "reward",
        "kl_penalty",
        "probs_ratio_clamped",
        "advantages/mean",
    ):
        ours, theirs = (r.logger.series("train", name) for r in (run, other))
        assert ours == pytest.approx(theirs, rel=NEAR, abs=NEAR), name
    torch.testing.assert_close(run.weights(), other.weights(), rtol=0, atol=NEAR)


def test_trains(trained: Callable[..., Run], tmp_path: Path) -> None:
    run = trained()
    series = run.logger.series
    losses = series("train", "loss")
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
    start = Run(tmp_path).weights()
    assert (run.weights() - start).abs().max() > 0.01
    assert len(set(series("train", "reward"))) > 1
    assert min(series("train", "probs_ratio_max")) > 1.3  # the bounds are 0.8 and 1.2
    assert max(series("train", "probs_ratio_min")) < 0.76
    assert series("train", "probs_ratio_clamped_max") == pytest.approx([1.2] * STEPS)
    assert series("train", "probs_ratio_clamped_min") == pytest.approx([0.8] * STEPS)
    # generation's weights were the policy's: NeMo-RL refitted before every rollout
    assert run.generation.refits == STEPS
    assert series("train", "token_mult_prob_error") == pytest.approx([1.0] * STEPS, abs=1e-5)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "unpacked"])
def test_packing_changes_nothing(mode: str, trained: Callable[..., Run]) -> None:
    assert trained(mode).policy.use_sequence_packing
    compare(trained(mode), trained())


def test_ranks_change_nothing(trained: Callable[..., Run]) -> None:
    compare(trained(ranks=1), trained())


def test_generation_is_deterministic(tmp_path: Path, trained: Callable[..., Run]) -> None:
    again = Run(tmp_path)
    again.train()
    assert torch.equal(again.weights(), trained().weights())


def test_resumes(tmp_path: Path, trained: Callable[..., Run]) -> None:
    """Two steps, then a third in a new run over the same checkpoints."""
    first = Run(tmp_path, ["grpo.max_num_steps=2"])
    first.train()
    second = Run(tmp_path)
    assert torch.equal(second.weights(), first.weights())
    second.train()
    assert torch.equal(second.weights(), trained().weights())
    assert second.logger.series("train", "loss") == trained().logger.series("train", "loss")[2:]


class Proxy:
    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._policy, name)

    def train(self, data: Any, loss_fn: Any, **kwargs: Any) -> Any:
        data["extra"] = torch.ones(data.size)
        return self._policy.train(data, loss_fn, **kwargs)


class Loss(ClippedPGLossFn):
    def __call__(self, next_token_logprobs: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        loss, metrics = super().__call__(next_token_logprobs, data, *args, **kwargs)
        return loss, metrics | {"rows": float(data["extra"].sum()), "calls": 1.0}


@pytest.mark.parametrize("mode", MODES)
def test_places_to_plug_in(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Callable[..., Run]
) -> None:
    """Another loss, a proxy around the policy, another estimator: what comes of each is seen."""
    run = Run(tmp_path, mode=mode)
    stock = grpo._create_advantage_estimator
    seen: list[str] = []

    class Estimator:
        def __init__(self, config: Any) -> None:
            self.stock = stock(config)

        def compute_advantage(self, **kwargs: Any) -> torch.Tensor:
            seen.append(" ".join(kwargs))
            return self.stock.compute_advantage(**kwargs)

    monkeypatch.setattr(grpo, "_create_advantage_estimator", Estimator)
    proxy = Proxy(run.policy)
    run.train(loss_fn=Loss(run.config.loss_fn), policy=proxy)
    compare(run, trained())
    # sums over the 16 responses, which the worker divides by the 2 optimizer steps
    assert run.logger.series("train", "rows") == [8.0] * STEPS
    for calls in run.logger.series("train", "calls"):  # 8 micro-batches, 16 sequences, the packs
        assert {"unpacked": calls == 4, "packed": calls == 8, "fused": 2 <= calls < 8}[mode]
    assert "get_logprobs" in proxy.calls
    assert (
        seen
        == ["prompt_ids rewards mask repeated_batch logprobs_policy logprobs_reference"] * STEPS
    )

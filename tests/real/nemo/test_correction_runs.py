"""Correction and old_policy: sampler in NeMo-RL's own trainers, against the embedded engine.

The sampler says e^-o times the probability that it draws with, o by the row, off_sampler.OFFSETS.
"""

import contextlib
import functools
from pathlib import Path
from typing import Any

import async_runs
import pytest
import torch
from in_queue import (
    InProcessRollouts,
    plugged_in_queue,
    queue_cluster,  # noqa: F401  a fixture
)
from nemo_rl.algorithms import grpo_sync
from off_sampler import off
from plugged import METHODS, STEPS, UPDATES, Plugged, embedded, rollouts_of, token_logprobs
from rounding import rounding

from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.engines.nemo.patches import previous_logprobs_skipped
from nemo_algos.engines.nemo.policy import columns_registered

pytestmark = pytest.mark.usefixtures("in_process")
# the ratios are 1, 1.28, 2.1 and 2.7 by the row: of four the last is rejected, the third cut
DECOUPLED = {"rollout_is": "token", "rollout_is_threshold": 1.5}
DECOUPLED |= {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.4_2.5"}
BYPASS = {"bypass_mode": True, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.55}


def counted(plugged: Plugged) -> list[int]:
    """The forwards for previous log-probs, as they come."""
    calls, workers = [], plugged.run.policy.workers
    forward = workers.get_logprobs

    def spy(shards: Any, model: Any = None) -> Any:
        if model is None:  # else of the reference
            calls.append(len(shards))
        return forward(shards, model)

    workers.get_logprobs = spy
    return calls


def trained(path: Path, correction: dict[str, Any]) -> tuple[Plugged, list[int]]:
    made = Plugged(path, METHODS["etr"], [], correction)
    made.run.generation.generate = off(made.run.generation.generate)
    bypass = made.algorithm.correction.bypass_mode
    with previous_logprobs_skipped() if bypass else contextlib.nullcontext():
        calls = counted(made)
        return made.train(), calls


@pytest.mark.parametrize("correction", [DECOUPLED, BYPASS], ids=["decoupled", "two policies"])
def test_a_step_is_the_embedded_engines(correction: dict[str, Any], tmp_path: Path) -> None:
    made, calls = trained(tmp_path, correction)
    bypass = made.algorithm.correction.bypass_mode
    assert len(calls) == (0 if bypass else STEPS)
    summaries, norms, weights = embedded(made, 0)
    near = rounding(UPDATES)
    after = torch.nn.utils.parameters_to_vector(made.proxy.models[1].parameters()).detach()
    torch.testing.assert_close(after, weights, rtol=0, atol=near)
    assert made.series("train", "grad_norm")[0] == pytest.approx(norms[-1], rel=10 * near)
    loss = sum(s["loss"] for s in summaries) / len(summaries)
    assert made.series("train", "loss")[0] == pytest.approx(loss, rel=near, abs=near)
    logged = made.run.logger.kept["train"][1]
    share = sum(s.get("correction/rejected_tokens", 0.0) for s in summaries) / len(summaries)
    if bypass:
        assert logged["correction/rejected_tokens"] == pytest.approx(share, abs=near) != 0
        assert not [name for name in logged if name.startswith("mismatch/")]
    else:
        assert logged["correction/rejected_sequences"] == 0.25
        assert logged["correction/weight_max"] == pytest.approx(2.718, rel=1e-3)
        assert logged["mismatch/max"] == pytest.approx(1, abs=1e-3)


@pytest.mark.usefixtures("queue_cluster")
@pytest.mark.parametrize("correction", [DECOUPLED, BYPASS], ids=["decoupled", "two policies"])
def test_the_queue_trains_the_same(
    correction: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = trained(tmp_path / "other", correction)
    made = plugged_in_queue(tmp_path / "queue", METHODS["etr"], "unpacked", monkeypatch, correction)
    made.run.generation.generate = off(made.run.generation.generate)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    asked: list[Any] = []
    stock = made.run.policy.get_logprobs_from_meta
    made.run.policy.get_logprobs_from_meta = lambda *args, **kwargs: (
        asked.append(args) or stock(*args, **kwargs)
    )
    with columns_registered(made.estimator):
        made.train(trainer=grpo_sync.grpo_train_sync)
    assert len(asked) == (0 if made.algorithm.correction.bypass_mode else STEPS)
    near = rounding(STEPS * UPDATES)
    for metric in ("loss", "clip/fraction", "correction/rejected_tokens"):
        got, want = made.series("train", metric), other.series("train", metric)
        assert got == pytest.approx(want, rel=near, abs=near), metric
    torch.testing.assert_close(made.weights(), other.weights(), rtol=0, atol=near)


def test_asynchronous_rollouts_are_clipped_against_their_own_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses of the weights before: the first ratio of every batch but the first is no 1."""
    bypass = {"bypass_mode": True}
    monkeypatch.setattr(async_runs, "Plugged", functools.partial(Plugged, correction=bypass))
    overrides = [*async_runs.ONE_UPDATE, "loss_fn.use_importance_sampling_correction=false"]
    with previous_logprobs_skipped():
        made = async_runs.trained(tmp_path, "etr", "unpacked", monkeypatch, overrides)
    for step, call in enumerate(made.estimator.calls):
        batch = made.proxy.batches[step]
        given = rollouts_of(batch, call, gen_logprobs=batch["generation_logprobs"])
        rollouts, _ = made.algorithm.correct(given)
        logprobs = token_logprobs(made.proxy.models[step], batch["input_ids"])
        signals, counts = made.algorithm.signals(rollouts, {}), Counts.of(rollouts.mask)
        loss = policy_loss(made.algorithm, logprobs, rollouts, signals, counts)
        logged = made.run.logger.kept["train"][step + 1]
        assert logged["loss"] == pytest.approx(float(loss.value), rel=1e-4, abs=2e-6)
        assert (abs(logged["kl/old"]) < 1e-6) == (step == 0)

"""NeMo-RL's own grpo_train_sync over a real TransferQueue, whose actors run in a local Ray.

In this process instead of in Ray actors: the rollout actor (its own class, undecorated) and the
policy's workers (NeMo-RL's MegatronPolicyWorkerImpl for fetching, log-probs and writing back, over
cpu_policy's model and its training loop). Left out: NeMo-RL's pip environment for the queue's
actors. Oracle: grpo_train on the same seeds.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from in_queue import InProcessRollouts, plugged_in_queue, queue_cluster  # noqa: F401
from nemo_rl.algorithms import grpo_sync
from nemo_rl.data_plane import column_io
from nemo_rl.models.policy import tq_policy
from plugged import METHODS, STEPS, UPDATES, Plugged
from rounding import rounding

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import columns, policy
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.policy import ENTROPY, columns_registered
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.jsonl import read_lines
from nemo_algos.lab.evals.records import TraceLine

REJECTING = {"bypass_mode": True, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.55}
pytestmark = pytest.mark.usefixtures("queue_cluster", "in_process")


@pytest.mark.parametrize(
    ("name", "mode"), [("etr", "unpacked"), ("erpo", "fused"), ("nll", "unpacked")]
)
def test_the_queue_trains_what_grpo_train_does(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS.get(name, {"name": "grpo", "terms": {"nll": {}}})
    other = Plugged(tmp_path / "other", method, [], mode=mode).train()
    plugged = plugged_in_queue(tmp_path / "queue", method, mode, monkeypatch)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    fields = tq_policy.DP_TRAIN_FIELDS
    aligned = column_io.TOKEN_ALIGNED_FIELDS
    with columns_registered(plugged.estimator):
        plugged.train(trainer=grpo_sync.grpo_train_sync)
    assert tq_policy.DP_TRAIN_FIELDS is fields
    assert getattr(grpo_sync, "DP_TRAIN_FIELDS", fields) is fields  # main has a copy there
    assert column_io.TOKEN_ALIGNED_FIELDS is aligned

    signals = set(columns.names(plugged.estimator.algorithm).values())
    assert signals or name in ("grpo", "quatro", "erpo")
    for fetched in plugged.run.policy.workers.trained:
        assert {k for k in fetched if k.startswith(columns.PREFIX)} == signals
    assert len(plugged.run.policy.workers.trained) == 3 == len(plugged.estimator.calls)
    near = rounding(STEPS * UPDATES)
    for ours, theirs in zip(plugged.estimator.calls, other.estimator.calls, strict=True):
        width = min(ours["advantages"].shape[1], theirs["advantages"].shape[1])
        advantages = (call["advantages"][:, :width] for call in (ours, theirs))
        torch.testing.assert_close(*advantages, rtol=near, atol=near)
    metrics = ("loss", "clip/fraction", "ratio/mean", *other.estimator.calls[0]["metrics"])
    metrics += ("mismatch/mean", "mismatch/p99", "mismatch/share_above")
    metrics += tuple(f"terms/{added.term.name}" for added in plugged.algorithm.terms)
    for metric in metrics:
        got, want = plugged.series("train", metric), other.series("train", metric)
        assert got == pytest.approx(want, rel=near, abs=near), metric
    torch.testing.assert_close(plugged.weights(), other.weights(), rtol=0, atol=near)


@pytest.mark.parametrize(
    ("name", "mode", "correction"), [("erpo", "fused", None), ("etr", "unpacked", REJECTING)]
)
def test_the_queue_traces_what_grpo_train_does(
    name: str, mode: str, correction: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, traced = (METHODS[name], []), Traced(2, 2, 3, str)
    Plugged(tmp_path / "other", *given, correction, mode=mode, traced=traced).train()
    queue = tmp_path / "queue"
    plugged = plugged_in_queue(queue, METHODS[name], mode, monkeypatch, correction, traced=traced)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    with columns_registered(plugged.estimator):
        plugged.train(trainer=grpo_sync.grpo_train_sync)
    folders = (tmp_path / "other", queue)
    sides = [[*read_lines(at / "traces/trace.jsonl", TraceLine)] for at in folders]
    near = {"rel": rounding(STEPS * UPDATES), "abs": rounding(STEPS * UPDATES)}
    assert [row["step"] for row in sides[1]] == [1] * 8 + [2] * 8 + [3] * 8
    for theirs, ours in zip(*sides, strict=True):
        nulls = [key for key, value in theirs.items() if value is None]
        for key in ("step", "group", "prompt", "tokens", "reward", "cut"):
            assert ours[key] == theirs[key], key
        assert [key for key, value in ours.items() if value is None] == nulls
        for key in {"entropy", "advantage", "ratio", "low", "high"} - {*nulls}:
            assert ours[key] == pytest.approx(theirs[key], **near), key
    assert any(abs(r - 1) > 0.05 for row in sides[1] for r in row["ratio"])


def test_without_registered_columns_the_queue_loses_the_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What columns_registered is for: workers fetch a fixed list of columns."""
    plugged = plugged_in_queue(tmp_path, METHODS["apmpo"], "unpacked", monkeypatch)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    monkeypatch.setattr(policy, "fetched_fields", lambda *_: {})
    with pytest.raises(KeyError, match="nemo_algos_signal_low"):
        plugged.train(trainer=grpo_sync.grpo_train_sync)


def test_columns_are_those_of_the_method() -> None:
    """Also the entropy's, which the extension writes and the driver reads."""
    for name, method in METHODS.items():
        estimator = Estimator(build(method))
        with columns_registered(estimator):
            added = set(tq_policy.DP_TRAIN_FIELDS) & column_io.TOKEN_ALIGNED_FIELDS
            added = {field for field in added if field.startswith("nemo_algos")}
        entropy = {ENTROPY} if name == "erpo" else set()
        assert added == {*columns.names(estimator.algorithm).values(), *entropy}

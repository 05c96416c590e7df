"""NeMo-RL's own async_grpo_train: a replay buffer and a collector that generates one step ahead.

Both are NeMo-RL's own classes in this process instead of Ray actors (the collector in its own
threads); generation is cpu_generation's asynchronous interface, workers are cpu_policy's.
Importance-sampling correction is on, as the trainer demands: responses are of the weights before
the last update.
"""

from pathlib import Path

import pytest
from async_runs import ONE_UPDATE, trained
from plugged import rollouts_of, token_logprobs

from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss

pytestmark = pytest.mark.usefixtures("in_process")
STEPS = 3


@pytest.mark.parametrize(("name", "mode"), [("etr", "unpacked"), ("erpo", "fused")])
def test_trains_off_policy_with_our_signals(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged = trained(tmp_path, name, mode, monkeypatch, ONE_UPDATE)
    assert len(plugged.series("train", "loss")) == STEPS == len(plugged.estimator.calls)
    for step, call in enumerate(plugged.estimator.calls):
        batch = plugged.proxy.batches[step]
        rollouts = rollouts_of(batch, call, gen_logprobs=batch["generation_logprobs"])
        mask = rollouts.mask
        gap = (batch["prev_logprobs"] - batch["generation_logprobs"])[mask].abs().max()
        assert gap < 1e-4 if step == 0 else gap > 0.01  # the first batch alone is on policy
        algorithm = plugged.algorithm
        loss = policy_loss(
            algorithm,
            token_logprobs(plugged.proxy.models[step], batch["input_ids"]),
            rollouts,
            algorithm.signals(rollouts, {}),
            Counts.of(mask),
            LossConfig(use_importance_sampling_correction=True),
        )
        logged = plugged.run.logger.kept["train"][step + 1]
        assert logged["loss"] == pytest.approx(float(loss.value), rel=1e-4, abs=2e-6)
        for metric, value in call["metrics"].items():
            assert logged[metric] == pytest.approx(value)


def test_bounds_clip_within_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four updates a batch."""
    plugged = trained(tmp_path, "apmpo", "packed", monkeypatch, [])
    assert min(plugged.series("train", "clip/fraction")) > 0.005
    assert plugged.series("train", "apmpo/eps_ada") == [
        call["metrics"]["apmpo/eps_ada"] for call in plugged.estimator.calls
    ]

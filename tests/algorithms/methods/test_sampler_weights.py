"""The sampler's correction of methods with one ratio per response, and what is said of weights."""

import math

import pytest
import torch
from batches import close

from nemo_algos import LossConfig, Rollouts, batch_loss
from nemo_algos.algorithms.extensions.correction import (
    CorrectionConfig,
    expected_product,
    sampler_metrics,
)
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.engines.mismatch.watch import Watch

HIGH = "truncated_importance_sampling_ratio"
TIS = {
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "tis",
    HIGH: 2.0,
}


@pytest.mark.parametrize("name", ["gspo", "quatro", "gmpo", "luspo"])
def test_the_weight_is_the_geometric_mean(name):
    """Token weights 2 and 8 are 4; 27 alone is 27, cut at 5."""
    log = torch.tensor([[2.0, 8.0], [27.0, 1.0]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, False]])
    old = torch.full((2, 2), -1.0, dtype=torch.float64)
    rollouts = Rollouts([0, 0], [1, 0], mask, old, gen_logprobs=old - log)
    both = []
    for config in (LossConfig(), LossConfig(**TIS | {HIGH: 5.0})):
        leaf = (old + 0.01).requires_grad_()
        batch_loss(name, leaf, rollouts, config)[0].backward()
        both.append(leaf.grad)
    plain, weighed = both
    close(weighed[mask], plain[mask] * torch.tensor([4.0, 4.0, 5.0], dtype=torch.float64))
    assert plain[mask].any()


@pytest.mark.parametrize("tokens", [12, 512, 2048])
@pytest.mark.parametrize("threshold", [2.0, "0.5_5.0"])
def test_the_expected_product_is_the_mean_of_drawn_ones(tokens, threshold):
    cut = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=threshold).cut
    s = 0.07 * math.sqrt(tokens)
    rng = torch.Generator().manual_seed(1)
    drawn = (s * torch.randn(400_000, generator=rng, dtype=torch.float64) - s * s / 2).exp()
    inside = (
        drawn.clamp(max=cut[2])
        if cut[0] == "tis"
        else drawn.where((drawn >= cut[1]) & (drawn <= cut[2]), 0.0)
    )
    assert expected_product(tokens, cut) == pytest.approx(float(inside.mean()), abs=0.005)


def test_metrics_and_one_remark():
    """Two tokens of weight 1 and 3: mean 2, (1 + 3)^2 / (2 (1 + 9)) = 0.8."""
    mask = torch.ones(2, 1).bool()
    old = torch.zeros(2, 1)
    gen = -torch.tensor([[1.0], [3.0]]).log()
    found = sampler_metrics(METHODS["grpo"], (None, 0.0, math.inf), old, gen, mask)
    assert found["correction/weight_mean"] == pytest.approx(2)
    assert found["correction/ess"] == pytest.approx(0.8)
    watch = Watch(MismatchConfig())
    assert not watch.weights(found)
    assert "correction/weight_mean is 0.30" in watch.weights({"correction/weight_mean": 0.3})
    assert not watch.weights({"correction/weight_mean": 0.3})

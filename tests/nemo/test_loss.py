"""Our methods as NeMo-RL's loss: the golden numbers, the embedded surrogate, and NeMo-RL's own loss
untouched."""

from pathlib import Path
from typing import Any

import batches
import nemo_batch
import pytest
import torch
from nemo_rl.algorithms.loss import ClippedPGLossFn

from nemo_algos import verify
from nemo_algos.core.surrogate import Counts
from nemo_algos.methods import METHODS
from nemo_algos.methods.build import build
from nemo_algos.methods.loss import LossConfig, policy_loss
from nemo_algos.nemo.loss import AlgorithmLoss
from nemo_algos.rollouts import Rollouts

GOLDEN = Path(__file__).parents[1] / "golden" / "public.json.gz"
TIS = {
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "tis",
    "truncated_importance_sampling_ratio": 1.1,
}
STOCK = ("grpo", "gspo")  # untouched NeMo-RL, which does not clamp log-ratios at 20:
UNCLAMPED = {"grpo-1-0", "grpo-1-3", "gspo-1-4", "grpo-2-1", "gspo-2-4", "gspo-2-5"}
DUAL_CLIPPED = ("etr", "erpo", "grpo", "gspo")


def golden_cases() -> list[dict[str, Any]]:
    return [c for c in verify.read(GOLDEN)["cases"] if not c["params"].get("kl_coef")]


def largest_log_ratio(case: dict[str, Any]) -> float:
    inputs = case["inputs"]
    gap = verify._float64(inputs["logprobs"]) - verify._float64(inputs["old_logprobs"])
    return float(gap[torch.tensor(inputs["mask"]).bool()].abs().max())


@pytest.mark.parametrize("case", golden_cases(), ids=lambda c: c["name"])
def test_golden_numbers_through_nemo_rl(case):
    params = {k: v for k, v in case["params"].items() if k != "kl_coef"}
    algorithm = build({"name": case["method"], **params})
    inputs = case["inputs"]
    rollouts = Rollouts(
        verify._labels(inputs["group"]),
        torch.tensor(inputs["rewards"], dtype=torch.float64),
        torch.tensor(inputs["mask"]).bool(),
        **{k: verify._float64(inputs[k]) for k in verify.TOKEN_INPUTS},
    )
    loss = AlgorithmLoss(nemo_batch.config(), algorithm)
    data = nemo_batch.batch(algorithm, rollouts)
    logprobs = verify._float64(inputs["logprobs"])
    value, gradient, _ = nemo_batch.loss_and_gradient(loss, logprobs, data)
    expected = case["expected"]
    errors = (verify._error(value, expected["loss"]), verify._error(gradient, expected["grad"]))
    if case["name"] in UNCLAMPED:
        assert case["method"] in STOCK and largest_log_ratio(case) > 20
        assert max(errors) > 1e-5
    else:
        assert max(errors) < 1e-5, errors


@pytest.mark.parametrize("correction", [{}, TIS], ids=["plain", "tis"])
@pytest.mark.parametrize("dual_clip", [None, 1.5], ids=["no dual clip", "dual clip"])
@pytest.mark.parametrize("name", METHODS)
def test_agrees_with_the_embedded_surrogate(name, dual_clip, correction):
    if dual_clip and name not in DUAL_CLIPPED:
        with pytest.raises(ValueError, match="dual_clip has no meaning"):
            build({"name": name, "dual_clip": dual_clip})
        return
    algorithm = build({"name": name, "dual_clip": dual_clip})
    rollouts, logprobs = batches.make(seed=3, large=False)
    config = nemo_batch.config(**correction)
    data = nemo_batch.batch(algorithm, rollouts)
    value, gradient, _ = nemo_batch.loss_and_gradient(
        AlgorithmLoss(config, algorithm), logprobs, data
    )
    leaf = logprobs.clone().requires_grad_()
    ours = policy_loss(
        algorithm,
        leaf,
        rollouts,
        algorithm.signals(rollouts),
        Counts.of(rollouts.mask),
        LossConfig(**correction),
    ).value
    (wanted,) = torch.autograd.grad(ours, leaf)
    torch.testing.assert_close(value, ours.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_the_kl_penalty_has_the_same_value_and_another_gradient(name):
    algorithm = build(name)
    rollouts, logprobs = batches.make(seed=4, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    loss = AlgorithmLoss(nemo_batch.config(reference_policy_kl_penalty=0.1), algorithm)
    value, gradient, metrics = nemo_batch.loss_and_gradient(loss, logprobs, data)
    leaf = logprobs.clone().requires_grad_()
    config = LossConfig(reference_policy_kl_penalty=0.1)
    counts = Counts.of(rollouts.mask)
    ours = policy_loss(algorithm, leaf, rollouts, algorithm.signals(rollouts), counts, config)
    (plain,) = torch.autograd.grad(ours.value, leaf)
    torch.testing.assert_close(value, ours.value.detach(), rtol=1e-6, atol=1e-7)
    assert metrics["kl_penalty"] > 0 and (gradient - plain).abs().max() > 1e-4


@pytest.mark.parametrize("extra", [{}, TIS, {"reference_policy_kl_penalty": 0.05}], ids=str)
@pytest.mark.parametrize("name", STOCK)
def test_grpo_and_gspo_are_bit_equal_to_nemo_rl(name, extra):
    algorithm = build(name)
    rollouts, logprobs = batches.make(seed=5, large=False, dtype=torch.float32)
    data = nemo_batch.batch(algorithm, rollouts)
    stock_config = nemo_batch.config(
        token_level_loss=False, sequence_level_importance_ratios=name == "gspo", **extra
    )
    stock = nemo_batch.loss_and_gradient(ClippedPGLossFn(stock_config), logprobs, data)
    ours = nemo_batch.loss_and_gradient(
        AlgorithmLoss(nemo_batch.config(**extra), algorithm), logprobs, data
    )
    assert torch.equal(stock[0], ours[0]) and torch.equal(stock[1], ours[1])
    assert stock[2].items() <= ours[2].items()


@pytest.mark.parametrize("name", METHODS)
def test_loss_and_metrics_add_up_over_micro_batches(name):
    algorithm = build(name)
    rollouts, logprobs = batches.make(seed=6, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    loss = AlgorithmLoss(nemo_batch.config(), algorithm)
    value, _, metrics = nemo_batch.loss_and_gradient(loss, logprobs, data)
    counts = nemo_batch.counts(data)
    logprobs = logprobs.where(rollouts.mask, 0.0)
    parts = [loss(logprobs[i : i + 1], data.slice(i, i + 1), *counts) for i in range(len(logprobs))]
    torch.testing.assert_close(sum(p[0] for p in parts), value, rtol=1e-6, atol=1e-8)
    extrema = {k for k in metrics if "_min" in k or "_max" in k}
    assert extrema <= {
        f"probs_ratio{c}_{e}" for c in ("", "_clamped") for e in ("min", "max")
    }  # the names that NeMo-RL does not add up
    # of sequence ratios NeMo-RL multiplies weights [B,1] by a mask [B], and gets [B,B]
    theirs = {"sampling_importance_ratio"} if algorithm.base.ratio == "sequence" else set()
    for key in metrics.keys() - extrema - theirs:
        assert sum(p[1][key] for p in parts) == pytest.approx(metrics[key], rel=1e-5, abs=1e-6), key


def test_metrics_are_those_of_the_embedded_engine():
    algorithm = build("etr")
    rollouts, logprobs = batches.make(seed=7, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    _, _, metrics = nemo_batch.loss_and_gradient(
        AlgorithmLoss(nemo_batch.config(), algorithm), logprobs, data
    )
    counts = Counts.of(rollouts.mask)
    signals = algorithm.signals(rollouts)
    ours = policy_loss(algorithm, logprobs, rollouts, signals, counts).stats.summary()
    for name in ("clip/fraction", "ratio/mean", "kl/old", "kl/old_sequence"):
        assert metrics[name] == pytest.approx(ours[name], rel=1e-6), name
    assert metrics["clip/fraction"] > 0.05  # the bounds really clip here


def test_approximate_entropy_is_of_the_true_logprobs():
    algorithm = build("quatro")
    rollouts, logprobs = batches.make(seed=8, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    _, _, metrics = nemo_batch.loss_and_gradient(
        AlgorithmLoss(nemo_batch.config(), algorithm), logprobs, data
    )
    assert rollouts.gen_logprobs is not None
    lp, gen = (x[rollouts.mask] for x in (logprobs, rollouts.gen_logprobs))
    assert metrics["approx_entropy"] == pytest.approx(float(-((lp - gen).exp() * lp).mean()), 1e-6)


def test_the_loss_survives_pickling_with_its_method():
    import ray.cloudpickle as cloudpickle

    algorithm = build({"advantages": "erpo", "bounds": "etr"})
    rollouts, logprobs = batches.make(seed=9, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    loss = AlgorithmLoss(nemo_batch.config(), algorithm)
    copy = cloudpickle.loads(cloudpickle.dumps(loss))
    for a, b in zip(
        nemo_batch.loss_and_gradient(loss, logprobs, data)[:2],
        nemo_batch.loss_and_gradient(copy, logprobs, data)[:2],
        strict=True,
    ):
        assert torch.equal(a, b)

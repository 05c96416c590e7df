"""Rollout correction against verl's (0.9.1): every preset and option, weights, masks, gradients."""

# pyright: reportMissingImports=false

import inspect

import pytest
import torch
import verl_peer
from peer_cases import Batch, differentiate, ours
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import rollout_corr_helper as verl_corr

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.correction import OPTIONS, PRESETS, CorrectionConfig, correct
from nemo_algos.algorithms.rollouts import Rollouts

FIELDS = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
FIELDS += ("rollout_rs", "rollout_rs_threshold")
DECOUPLED = [name for name in PRESETS if not name.startswith("bypass")]
BYPASS = [name for name in PRESETS if name.startswith("bypass")]
EXACT = {"rtol": 1e-10, "atol": 1e-12}
# verl divides by a sequence's tokens + 1e-8, and so do its means of weights
NEARLY = {"rtol": 1e-7, "atol": 1e-9}
KINDS = ("decoupled", "bypass", "disabled")
B, S, GROUP = 24, 16, 4


def rollouts(seed=0):
    """Gaps from tiny, which the geometric bounds keep, to beyond e^20; holes, an empty row."""
    rng = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=rng, dtype=torch.float64)  # noqa: E731
    mask = torch.rand((B, S), generator=rng) < 0.8
    mask[3] = False
    scale = torch.tensor([1e-4, 2e-3, 0.02, 0.1, 0.5, 2.0]).double().repeat(B // 6)[:, None]
    old = -normal(B, S).abs()
    gap = scale * normal(B, S)
    gap[5, :2], gap[10, 0] = torch.tensor([30.0, -27.0]), 41.0
    group = torch.arange(B) // GROUP
    rewards = torch.rand(B, generator=rng)
    ref = old + 0.1 * normal(B, S)
    return Rollouts(group, rewards, mask, old, ref_logprobs=ref, gen_logprobs=old - gap)


def of_verl(name):
    return getattr(RolloutCorrectionConfig, name)()


def by_verl(batch, config):
    """Weights [B,S] or None, and the mask, of verl's own function."""
    settings = {field: getattr(config, field) for field in FIELDS}
    proto, mask, _ = verl_corr.compute_rollout_correction_and_rejection_mask(
        batch.old_logprobs, batch.gen_logprobs, batch.mask.double(), **settings
    )
    return proto and proto.batch["rollout_is_weights"], mask.bool()


def same(batch, own, config, tolerance):
    weights, mask = by_verl(batch, config)
    got, _ = correct(own, batch)
    assert torch.equal(got.mask, mask)
    weighed = got.rollout_is_weights.where(batch.mask, 0.0)
    torch.testing.assert_close(
        weighed, batch.mask.double() if weights is None else weights, **tolerance
    )
    return got


def test_the_presets_are_verls():
    made = inspect.getmembers(RolloutCorrectionConfig, inspect.ismethod)
    assert {name for name, _ in made if name.startswith(KINDS)} == {*PRESETS}
    for name in PRESETS:
        ours, theirs = CorrectionConfig(preset=name), of_verl(name)
        shared = {field: getattr(theirs, field) for field in (*FIELDS, "bypass_mode")}
        assert ours.model_dump(include={*shared}) == shared, name
        assert not theirs.bypass_mode or ours.loss_type == theirs.loss_type
    assert set(OPTIONS) == verl_corr.SUPPORTED_ROLLOUT_RS_OPTIONS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", [name for name in DECOUPLED if name != "disabled"])
def test_weights_and_masks_of_the_presets(name, seed):
    batch = rollouts(seed)
    got = same(batch, CorrectionConfig(preset=name), of_verl(name), EXACT)
    if got.mask is not batch.mask and CorrectionConfig(preset=name).rollout_rs:
        assert 0 < got.mask.sum() < batch.mask.sum()  # some are rejected, and some are not


THRESHOLDS = {"k1": "0.7_1.2", "k2": 0.05, "k3": 0.03}
AXES = [{"rollout_rs": o, "rollout_rs_threshold": THRESHOLDS[o[-2:]]} for o in OPTIONS]
AXES += [
    {"rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "1.5,0.4"},
    {"rollout_rs": "token_k1, seq_sum_k1 ,token_k1", "rollout_rs_threshold": "1.5"},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.5_5.0"},
    {"rollout_is": "token", "rollout_is_threshold": "1.0"},
    {"rollout_is": "token", "rollout_is_threshold": 3.0, "rollout_rs": "token_k2"}
    | {"rollout_rs_threshold": 0.1},
]


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_every_option(axis):
    config = RolloutCorrectionConfig(**{"rollout_is": None, **axis})
    got = same(rollouts(7), CorrectionConfig(**axis), config, EXACT)
    assert not torch.equal(got.mask, rollouts(7).mask) or "rollout_is" in axis


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("threshold", [2.0, "0.5_5.0"])
def test_batch_normalisation(level, threshold):
    axis = {"rollout_is": level, "rollout_is_threshold": threshold}
    axis["rollout_is_batch_normalize"] = True
    batch = rollouts(3)
    got = same(batch, CorrectionConfig(**axis), RolloutCorrectionConfig(**axis), NEARLY)
    plain, _ = correct(CorrectionConfig(**axis | {"rollout_is_batch_normalize": False}), batch)
    assert not torch.equal(plain.rollout_is_weights, got.rollout_is_weights)


def agree(got, theirs, logprobs, mean):
    want = differentiate(theirs, logprobs)
    torch.testing.assert_close(got, want, **(EXACT if mean == "token" else NEARLY))
    assert got.grad.abs().max() > 0


def current(batch, seed=1):
    noise = torch.randn((B, S), generator=torch.Generator().manual_seed(seed)).double()
    return batch.old_logprobs + 0.2 * noise


CLIP = {"clip_low": 0.2, "clip_high": 0.2}
LOSSES = [  # verl's, and ours
    ("vanilla", {"name": "grpo", "aggregation": "token"}),
    ("vanilla", {"name": "grpo", "aggregation": "sequence"}),
    ("gspo", {"name": "gspo"} | CLIP),
    ("gspo", {"name": "gspo_token"} | CLIP),
    ("cispo", {"name": "cispo"} | CLIP),
    ("gpg", {"name": "gpg"}),
]
# of token weights gspo's one gradient takes the mean; verl's, as gspo_token, takes each token's own
CASES = [
    (name, *loss)
    for name in DECOUPLED
    for loss in LOSSES
    if loss[1]["name"] != "gspo" or PRESETS[name].get("rollout_is") != "token"
]


@pytest.mark.parametrize(("name", "verls", "method"), CASES, ids=str)
def test_loss_and_gradient_decoupled(name, verls, method):
    """verl's weights and mask in verl's own losses; its KL penalty over the mask that is left."""
    batch, algorithm = rollouts(2), build(method, {"preset": name})
    corrected, _ = algorithm.correct(batch)
    signals, logprobs = algorithm.signals(corrected), current(batch)
    weights, mask = by_verl(batch, of_verl(name)) if name != "disabled" else (None, batch.mask)
    mean = {"aggregation": algorithm.mean, "weights": weights}

    def theirs(logprobs):
        given = (batch.old_logprobs, logprobs, signals.advantages, mask)
        loss = verl_peer.loss(verls, *given, **mean)
        penalty = verl_peer.kl(logprobs, batch.ref_logprobs, mask, aggregation=algorithm.mean)
        return loss + 0.01 * penalty

    got, _ = ours(method, Batch(batch, logprobs), 0.01, {"preset": name})
    agree(got, theirs, logprobs, algorithm.mean)


@pytest.mark.parametrize(
    ("name", "mean"),
    [(name, "token") for name in BYPASS]
    + [(name, "sequence") for name in (*BYPASS, "token_k3") if "pg" not in name],
)
def test_loss_and_gradient_with_old_as_the_sampler(name, mean):
    """verl judges pi against the sampler in the loss, and counts what it rejects in token means."""
    own = {"bypass_mode": True, "rollout_rs": "token_k3", "rollout_rs_threshold": 0.1}
    config = of_verl(name) if name in PRESETS else RolloutCorrectionConfig(rollout_is=None, **own)
    batch, pg = rollouts(4), "pg" in name
    clipped = {"name": "grpo", "aggregation": mean}
    method = {"name": "gpg", "advantages": "grpo"} if pg else clipped
    given = {"preset": name} if name in PRESETS else own
    algorithm = build(method, given)
    corrected, metrics = algorithm.correct(batch)
    assert torch.equal(corrected.old_logprobs, batch.gen_logprobs) and metrics == {}
    assert corrected.mask is batch.mask
    signals, counts = algorithm.signals(corrected), Counts.of(batch.mask)
    sizes = {"batch_num_tokens": counts.tokens, "global_batch_size": counts.sequences}
    settings = {"aggregation": mean, "batch": sizes, "rollout_correction": config}
    logprobs = batch.old_logprobs + 1e-5 * (current(batch) - batch.old_logprobs)

    def theirs(logprobs):
        args = (batch.gen_logprobs, logprobs, signals.advantages, batch.mask)
        return verl_peer.loss("bypass_mode", *args, **settings)

    got, _ = ours(method, Batch(batch, logprobs), correction=given)
    agree(got, theirs, logprobs, mean)

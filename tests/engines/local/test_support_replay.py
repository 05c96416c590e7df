"""Rollouts sampled with filters: with replay the trainer scores them over what the sampler kept."""

import pytest
import torch
import trainers
from rounding import rounding
from says import Says
from trainers import ROWS, update

from nemo_algos.engines.local.sampling import unpack
from nemo_algos.engines.local.schema import GenerationSection
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.preflight.check.judge import check

GEN = "policy.generation"
ONE_UPDATE = "policy.train_global_batch_size=32"
FILTERS = {
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "all": {"top_p": 0.9, "top_k": 8, "min_p": 0.02},
}
EVERY = pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)


def policy(replays, seed=0, **filters):
    section = GenerationSection(
        max_new_tokens=12, temperature=1.3, support_replay=replays, **filters
    )
    return TinyPolicy(trainers.policy(seed).model, section)


def kept_by_hand(p, top_p=1.0, top_k=None, min_p=0.0):
    """Token by token, likeliest first."""
    ranked = sorted(range(len(p)), key=lambda v: -p[v])
    ranked = [v for v in ranked if p[v] >= min_p * p[ranked[0]]][:top_k]
    whole, out, mass = sum(p[v] for v in ranked), [], 0.0
    for v in ranked:
        if mass < top_p * whole:
            out.append(v)
        mass += p[v]
    return out


def scored_by_hand(model, drawn, sets):
    """[B,S]: log pi(a) - log sum of pi over the token's set, of the plain forward."""
    logits = model.response_logits(drawn.prompts, drawn.group, drawn.tokens) / 1.3
    p = logits.double().softmax(-1)
    out = torch.zeros(drawn.mask.shape)
    for i, s in drawn.mask.nonzero().tolist():
        a = drawn.tokens[i, s]
        out[i, s] = (p[i, s, a] / p[i, s][sets[i, s]].sum()).log()
    return out


@EVERY
def test_the_sampler_keeps_its_sets_and_every_log_prob_is_over_them(filters):
    """The trainer's, the reference's and the sampler's own; entropies stay whole."""
    made = trainers.trainer(
        trained=policy(True, **filters), reference=policy(False, seed=1), method="erpo"
    )
    drawn, rollouts = made.collect()
    sets = unpack(drawn.support, made.policy.model.embed.num_embeddings)
    with torch.no_grad():
        logits = made.policy.model.response_logits(drawn.prompts, drawn.group, drawn.tokens)
        p = (logits / 1.3).double().softmax(-1)
        models = made.policy.model, policy(False, seed=1).model
        own, reference = (scored_by_hand(model, drawn, sets) for model in models)
    for i, s in drawn.mask.nonzero().tolist():
        assert sets[i, s].nonzero()[:, 0].tolist() == sorted(
            kept_by_hand(p[i, s].tolist(), **filters)
        )
    sizes = sets.sum(-1)[drawn.mask]
    assert sizes.min() < sizes.max() or filters.keys() == {"top_k"}
    close = {"rtol": 0, "atol": 2e-5}
    torch.testing.assert_close(drawn.gen_logprobs, own, **close)
    torch.testing.assert_close(rollouts.old_logprobs, own, **close)
    torch.testing.assert_close(rollouts.ref_logprobs, reference, **close)
    entropy = -(p * p.log()).sum(-1).float().where(drawn.mask, 0.0)
    torch.testing.assert_close(rollouts.entropy, entropy, **close)


@pytest.mark.parametrize("old", ["sampler", "trainer"])
@EVERY
def test_the_first_ratio_is_1_with_replay_alone(filters, old):
    """To the sampler it is the mass that was kept without it; to the trainer's own 1 either way."""
    with_, metrics = update(ONE_UPDATE, f"old_policy={old}", trained=policy(True, **filters))
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio/max"] == pytest.approx(1, abs=1e-4)
    without, metrics = update(ONE_UPDATE, f"old_policy={old}", trained=policy(False, **filters))
    if old == "sampler":
        assert metrics["ratio/mean"] < 0.97 and metrics["ratio/max"] <= 1 + 1e-4
    else:
        assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert metrics["mismatch/mean"] > 0.03
    assert not torch.allclose(with_, without, atol=100 * rounding())


def test_a_sampler_apart_is_scored_by_the_trainer_over_the_sampler_s_sets():
    trained = policy(True, top_p=0.9)
    made = trainers.trainer(trained=trained, kind=trainers.NoisyTrainer)
    drawn, _ = made.collect()
    sets = unpack(drawn.support, trained.model.embed.num_embeddings)
    with torch.no_grad():
        want = scored_by_hand(trained.model, drawn, sets)
        sampler = scored_by_hand(made.sampler.model, drawn, sets)
    torch.testing.assert_close(drawn.logprobs, want, rtol=0, atol=2e-5)
    torch.testing.assert_close(drawn.gen_logprobs, sampler, rtol=0, atol=2e-5)


def test_micro_batches_and_padding_change_nothing():
    whole, _ = update(trained=policy(True, top_p=0.9))
    cut, _ = update("policy.train_micro_batch_size=3", trained=policy(True, top_p=0.9))
    torch.testing.assert_close(cut, whole, rtol=0, atol=rounding())
    drawn, _ = trainers.trainer(trained=policy(True, top_p=0.9)).collect()
    trained, rows = policy(True, top_p=0.9), torch.arange(ROWS)
    longer = {
        name: torch.nn.functional.pad(
            getattr(drawn, name), (0, 0) * (getattr(drawn, name).dim() - 2) + (0, 3)
        )
        for name in ("tokens", "mask", "support")
    }
    padded = trainers.replace(drawn, **longer)
    with torch.no_grad():
        got, want = (trained.logprobs(of, rows) for of in (padded, drawn))
    assert got.isfinite().all()
    torch.testing.assert_close(got[:, :-3][drawn.mask], want[drawn.mask])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["support_replay=true"], ("error", f"{GEN}.support_replay", "top_p")),
        (["top_p=0.9"], ("warning", f"{GEN}.top_p", "policy.generation.support_replay")),
        (["top_k=5"], ("warning", f"{GEN}.top_k", "policy.generation.support_replay")),
        (["min_p=0.1"], ("warning", f"{GEN}.min_p", "policy.generation.support_replay")),
        (["min_p=0.1", "support_replay=true"], ("note", f"{GEN}.support_replay", "reference")),
    ],
)
def test_check_says_who_renormalises(overrides, said):
    severity, path, words = said
    (found,) = check("erpo.yaml", [f"{GEN}.{o}" for o in overrides], "main")
    assert (found.severity, found.path, found.message) == (severity, path, Says(words))


def test_one_update_to_the_sampler_is_a_trust_region_only_where_the_two_differ():
    asked = ["policy.train_global_batch_size=512", "old_policy=sampler", f"{GEN}.top_p=0.9"]
    base = check("grpo.yaml", asked, "main")
    replayed = check("grpo.yaml", [*asked, f"{GEN}.support_replay=true"], "main")
    inert = [[f.severity for f in found if "REINFORCE" in f.message] for found in (base, replayed)]
    assert inert[0] == [] and len(inert[1]) == 1

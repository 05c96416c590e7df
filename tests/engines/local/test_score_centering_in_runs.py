"""Score centering in the embedded engine: the sampler's likeliest tokens reach the update."""

import pytest
import torch
import trainers
from says import Says

from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.engines.local.schema import GenerationSection
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.engines.local.updates import Batch
from nemo_algos.preflight.check.judge import check

TOP = 5
ON = ["loss_fn.score_centering=true", f"policy.generation.top_logprobs={TOP}"]
BYPASS = ["old_policy=sampler", "rollout_correction.rollout_is=token"]


def made(*more):
    """A sampler whose weights are off by noise; temperature 1.3."""
    section = GenerationSection(max_new_tokens=12, temperature=1.3, top_logprobs=TOP)
    trained = TinyPolicy(trainers.policy().model, section)
    return trainers.trainer(*ON, *more, trained=trained, kind=trainers.NoisyTrainer, method="gpg")


def whole(model, drawn):
    """log softmax [B,S,V] by the plain forward."""
    return (model.response_logits(drawn.prompts, drawn.group, drawn.tokens) / 1.3).log_softmax(-1)


@pytest.mark.parametrize(("more", "weigh"), [([], torch.ones_like), (BYPASS, None)])
def test_the_gradient_is_that_of_whole_vocabularies(more, weigh):
    """-A (f(p_a / q_a) log p_a - sum of q^ f(p / q^) log p), q^ = rho p beyond the likeliest."""
    weigh = weigh or (lambda ratio: ratio.clamp(max=2.0))
    trainer = made(*more)
    drawn, rollouts = trainer.collect()
    mask = drawn.mask
    with torch.no_grad():
        q = whole(trainer.sampler.model, drawn).exp()
    likeliest, ids = q.topk(TOP)
    torch.testing.assert_close(drawn.likeliest[mask], ids[mask])
    gap = drawn.likeliest_logprobs[mask] - likeliest[mask].log()
    assert gap.abs().max() < 2e-5
    model = trainer.policy.model
    log_p = whole(model, drawn)
    p = log_p.detach().exp()
    head = torch.zeros_like(q, dtype=torch.bool).scatter(-1, ids, True)
    rho = q.where(~head, 0.0).sum(-1, keepdim=True) / p.where(~head, 0.0).sum(-1, keepdim=True)
    modelled = torch.where(head, q, rho * p)
    mean = (modelled * weigh(p / modelled) * log_p).sum(-1)
    own, sampled = (x.gather(-1, drawn.tokens[..., None])[..., 0] for x in (log_p, q))
    rollouts, _ = trainer.algorithm.correct(rollouts)
    signals = trainer.algorithm.signals(rollouts)
    scores = weigh(own.detach().exp() / sampled) * own - mean
    loss = -(signals.advantages * scores)[mask].sum() / mask.sum()
    want = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
    rows = torch.arange(len(mask))
    trainer.update.accumulate(rows, Batch(drawn, rollouts, signals), Counts.of(mask))
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert want.abs().max() > 1e-3
    torch.testing.assert_close(got, want.float(), rtol=0, atol=2e-5)


def test_rewards_rise_where_most_updates_are_of_a_policy_that_has_moved_on():
    """MadeUp pays for an odd sum of tokens."""
    trainer = made("grpo.num_update_epochs=2", "policy.train_global_batch_size=8")
    rewards = [trainer.step()["reward/mean"] for _ in range(12)]
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.3, rewards


KEY, NUMBER = "loss_fn.score_centering", "policy.generation.top_logprobs"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (ON[:1], f"{NUMBER}: {KEY} 128"),
        (ON[1:], f"{NUMBER}: {KEY}"),
        ([*ON, "method.name=grpo"], f"{KEY}: grpo method.name gpg"),
        ([*ON, "policy.generation.top_p=0.9"], f"{KEY}: top_p filters"),
        (
            [*ON, "loss_fn.use_importance_sampling_correction=true"],
            f"{KEY}: loss_fn.use_importance_sampling_correction old_policy",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(written, said):
    errors = [str(f) for f in check("gpg.yaml", written) if f.severity == "error"]
    assert errors == [Says(said)]
    assert [f for f in check("gpg.yaml", [*ON, *BYPASS]) if f.severity != "note"] == []


def test_where_nothing_is_to_be_centred_check_says_so():
    (told,) = check("gpg.yaml", [*ON, "policy.train_global_batch_size=512"])
    said = Says("512 policy.train_global_batch_size")
    assert (told.severity, told.path, told.message) == ("warning", KEY, said)

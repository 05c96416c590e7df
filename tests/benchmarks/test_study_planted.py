"""A planted sampler: off by what is asked, and in training only."""

from collections import deque

import pytest
import torch
import trainers
from planted import Planted, PlantedTrainer
from pydantic import ValidationError

from nemo_algos.engines.local.low_precision import e4m3
from nemo_algos.engines.local.tiny_policy import TinyPolicy


def planted(of="dense", **keys):
    trained = {
        "dense": trainers.policy,
        "moe": trainers.moe,
        "replayed": lambda: trainers.moe(replays=True),
    }[of]()
    config, algorithm = trainers.checked(*([] if of == "dense" else [trainers.MOE]))
    task = trainers.MadeUp(config.data, config.grpo.seed)
    return PlantedTrainer(Planted(**keys), config, algorithm, trained, task, None)


def gaps(made, steps):
    """log pi_trainer - log pi_sampler of the sampled tokens of each of some batches."""
    found = []
    for _ in range(steps):
        drawn, _ = made.collect()
        found.append((drawn.logprobs - drawn.gen_logprobs)[drawn.mask].double())
        made.step_number += 1
    return found


@pytest.mark.parametrize("asked", [0.02, 0.1, 0.3])
def test_noise_is_the_mean_distance_in_nats(asked):
    made = planted(noise=asked)
    found = torch.tensor([float(gap.abs().mean()) for gap in gaps(made, 16)])
    assert found[8:].mean() == pytest.approx(asked, rel=0.1)


def test_the_sampler_says_the_probabilities_that_it_draws_from():
    """So E[pi_trainer / pi_sampler] = 1, and E[log] < 0; and the trainer's own are its own."""
    made = planted(noise=0.1)
    every = torch.cat(gaps(made, 8))
    error = every.exp().std() / len(every) ** 0.5
    assert abs(float(every.exp().mean()) - 1) < 4 * error < 0.05
    assert float(every.mean()) < 0
    drawn, rollouts = made.collect()
    with torch.no_grad():
        own = made.policy.logprobs(drawn, torch.arange(trainers.ROWS))
        sampled = TinyPolicy.logprobs(made.sampler, drawn, torch.arange(trainers.ROWS))
    torch.testing.assert_close(rollouts.old_logprobs[drawn.mask], own[drawn.mask])
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(drawn.gen_logprobs[drawn.mask], sampled[drawn.mask], **close)


def test_noise_errs_alike_in_every_step():
    made = planted(noise=0.1)
    damage = []
    for _ in range(2):
        made.step()
        made.sampler.refit()
        pair = (dict(m.named_parameters()) for m in (made.sampler.model, made.policy.model))
        ours, theirs = (p["layers.0.qkv.weight"] for p in pair)
        damage.append((ours - theirs).flatten() / made.sampler.scale)
    assert torch.cosine_similarity(*damage, dim=0) > 0.999
    other = planted(noise=0.1)
    assert torch.equal(other.sampler.noise["layers.0.qkv"], made.sampler.noise["layers.0.qkv"])


def test_fp8_rounds_weights_and_inputs_of_linear_layers_but_the_routers():
    made = planted("moe", fp8=True)
    (gap,) = gaps(made, 1)
    assert 1e-4 < gap.abs().mean() < 0.3
    mine, theirs = made.sampler.model.layers[0], made.policy.model.layers[0]
    assert torch.equal(mine.down.weight, e4m3(128, theirs.down.weight.detach(), True))
    assert not torch.equal(mine.down.weight, theirs.down.weight)
    for name in ("router.gate.weight", "mlp_norm.weight"):
        assert torch.equal(mine.get_parameter(name), theirs.get_parameter(name))
    x = torch.randn(5, 64)
    got = mine.qkv(x)
    torch.testing.assert_close(got, e4m3(128, x, False) @ mine.qkv.weight.T)


@pytest.mark.parametrize("updates", [1, 3, 4])
def test_stale_is_the_weights_of_so_many_updates_ago(updates):
    """Four updates a step: 4 is the weights that the last batch was sampled with."""
    made = planted(stale_updates=updates)
    past = deque([trainers.weights(made)])
    made.update.optimizer.register_step_post_hook(lambda *_: past.append(trainers.weights(made)))
    config = made.config
    rollouts = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    per_step = rollouts // config.policy.train_global_batch_size
    for step in range(4):
        made.sampler.refit()
        behind = max(0, step * per_step - updates)
        (sampled,) = [torch.cat([p.flatten() for p in made.sampler.model.parameters()])]
        assert torch.equal(sampled, past[behind])
        made.step()


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_routes_flip_at_the_rate(rate):
    made = planted("moe", route_flips=rate)
    found = []
    for _ in range(16):
        drawn, _ = made.collect()
        found.append(drawn.distances["mismatch/routes"])
        made.step_number += 1
    assert sum(found[8:]) / 8 == pytest.approx(rate, rel=0.1)


def test_routes_flip_at_near_ties_and_alike_for_equal_inputs():
    made = planted("moe", route_flips=0.1)
    made.collect()
    top = made.sampler.model.layers[0].router.top
    logits = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0))
    best = logits.topk(3)
    flipped = top(logits).sort(-1).values != best.indices[:, :2].sort(-1).values
    flipped = flipped.any(-1)
    margin = best.values[:, 1] - best.values[:, 2]
    assert 0.02 < flipped.double().mean() < 0.3
    assert margin[flipped].mean() < 0.3 * margin.mean()
    assert torch.equal(top(logits), top(logits))
    assert torch.equal(made.policy.model.layers[0].router.top(logits), best.indices[:, :2])


def test_replay_takes_the_distance_away():
    flipped = planted("moe", route_flips=0.3).step()
    replayed = planted("replayed", route_flips=0.3).step()
    assert flipped["mismatch/mean"] > 1e-3 and replayed["mismatch/mean"] < 1e-5
    assert replayed["mismatch/routes"] > 0.25  # its own routers still say others


def test_an_evaluation_samples_from_the_trained_weights():
    from nemo_algos.engines.local.evaluation import sample

    plain, made = trainers.trainer(), planted(noise=0.3)
    asked = 4, 8, 1234
    found = [sample(t.policy, t.task, *asked) for t in (plain, made)]
    assert found[0].lengths == found[1].lengths
    assert made.step()["mismatch/mean"] > 0.05


def test_noise_is_alone_and_a_flip_needs_a_third_expert():
    with pytest.raises(ValidationError, match="noise sets the whole mismatch"):
        Planted(noise=0.1, stale_updates=4)
    dense, _ = trainers.checked()
    emulated, _ = trainers.checked("policy.precision=mxfp8")
    assert "third expert" in Planted(route_flips=0.1).problem(dense)
    assert "adds to it" in Planted(noise=0.1).problem(emulated)
    assert Planted(noise=0.1).problem(dense) == ""

"""A planted sampler: off by what is asked, in training only, and the same after a resume."""

import math
import re
from collections import deque

import pytest
import torch
import trainers
from rich.console import Console

from nemo_algos.engines.local.schema import SHAPES, TINY_MOE
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy

PLANTED = "policy.generation.planted"
CLOCK = re.compile("time|second")
MOE = f"policy.model_name={TINY_MOE}"


def moe(replays=False):
    torch.manual_seed(0)
    model = Tiny(SHAPES[TINY_MOE])
    for layer in model.layers:
        layer.router.gate.weight.data *= 20  # one expert weighs more than the other
    model.embed.weight.data *= 3
    return TinyPolicy(model, trainers.UP_TO_12, replays)


def planted(*overrides, of="dense", **settings):
    overrides = [f"{PLANTED}.{override}" for override in overrides]
    trained = {"dense": trainers.policy, "moe": moe, "replayed": lambda: moe(replays=True)}[of]()
    model = [] if of == "dense" else [MOE]
    return trainers.trainer(*overrides, *model, trained=trained, **settings)


def gaps(made, steps):
    """log pi_trainer - log pi_sampler of the sampled tokens of each of some batches."""
    found = []
    for _ in range(steps):
        drawn, _ = made.collect()
        found.append((drawn.logprobs - drawn.gen_logprobs)[drawn.mask].double())
        made.step_number += 1
    return found


def test_nothing_planted_is_the_policy_itself():
    made = trainers.trainer()
    assert made.planted is None and made.state()["planted"] == {}


@pytest.mark.parametrize("asked", [0.02, 0.1, 0.3])
def test_noise_is_the_mean_distance_in_nats(asked):
    made = planted(f"noise={asked}")
    found = torch.tensor([float(gap.abs().mean()) for gap in gaps(made, 16)])
    assert found[8:].mean() == pytest.approx(asked, rel=0.1)


def test_the_sampler_says_the_probabilities_that_it_draws_from():
    """So E[pi_trainer / pi_sampler] = 1, and E[log] < 0; and the trainer's own are its own."""
    made = planted("noise=0.1")
    every = torch.cat(gaps(made, 8))
    error = every.exp().std() / len(every) ** 0.5
    assert abs(float(every.exp().mean()) - 1) < 4 * error < 0.05
    assert float(every.mean()) < 0
    drawn, rollouts = made.collect()
    with torch.no_grad():
        own = made.policy.logprobs(drawn, torch.arange(trainers.ROWS))
        sampled = TinyPolicy.logprobs(made.planted, drawn, torch.arange(trainers.ROWS))
    torch.testing.assert_close(rollouts.old_logprobs[drawn.mask], own[drawn.mask])
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(drawn.gen_logprobs[drawn.mask], sampled[drawn.mask], **close)


def test_noise_errs_alike_in_every_step():
    made = planted("noise=0.1")
    damage = []
    for _ in range(2):
        made.step()
        made.planted._refit()
        pair = (dict(m.named_parameters()) for m in (made.planted.model, made.policy.model))
        ours, theirs = (p["layers.0.qkv.weight"] for p in pair)
        damage.append((ours - theirs).flatten() / made.planted.scale)
    assert torch.cosine_similarity(*damage, dim=0) > 0.999
    other = planted("noise=0.1", "noise=0.1")
    assert torch.equal(other.planted.noise["layers.0.qkv"], made.planted.noise["layers.0.qkv"])


def test_fp8_rounds_weights_and_inputs_of_linear_layers_but_the_routers():
    from nemo_algos.engines.local.low_precision import e4m3

    made = planted("fp8=true", of="moe")
    (gap,) = gaps(made, 1)
    assert 1e-4 < gap.abs().mean() < 0.3
    mine, theirs = made.planted.model.layers[0], made.policy.model.layers[0]
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
    made = planted(f"stale_updates={updates}", "fp8=false")
    past = deque([trainers.weights(made)])
    made.update.optimizer.register_step_post_hook(lambda *_: past.append(trainers.weights(made)))
    config = made.config
    rollouts = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    per_step = rollouts // config.policy.train_global_batch_size
    for step in range(4):
        made.planted._refit()
        behind = max(0, step * per_step - updates)
        (sampled,) = [torch.cat([p.flatten() for p in made.planted.model.parameters()])]
        assert torch.equal(sampled, past[behind])
        made.step()


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_routes_flip_at_the_rate(rate):
    made = planted(f"route_flips={rate}", of="moe")
    found = []
    for _ in range(16):
        drawn, _ = made.collect()
        found.append(drawn.distances["mismatch/routes"])
        made.step_number += 1
    assert sum(found[8:]) / 8 == pytest.approx(rate, rel=0.1)


def test_routes_flip_at_near_ties_and_alike_for_equal_inputs():
    made = planted("route_flips=0.1", of="moe")
    made.collect()
    top = made.planted.model.layers[0].router.top
    logits = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0))
    best = logits.topk(3)
    flipped = top(logits).sort(-1).values != best.indices[:, :2].sort(-1).values
    flipped = flipped.any(-1)
    margin = best.values[:, 1] - best.values[:, 2]
    assert 0.02 < flipped.double().mean() < 0.3
    assert margin[flipped].mean() < 0.3 * margin.mean()
    assert torch.equal(top(logits), top(logits))
    assert torch.equal(made.policy.model.layers[0].router.top(logits), best.indices[:, :2])


def test_without_flips_the_routes_are_the_trainers():
    made = planted("route_flips=0.0", of="moe")
    assert made.step()["mismatch/routes"] == 0
    assert made.step()["mismatch/mean"] < 1e-5


def test_replay_takes_the_distance_away():
    flipped = planted("route_flips=0.3", of="moe").step()
    replayed = planted("route_flips=0.3", of="replayed").step()
    assert flipped["mismatch/mean"] > 1e-3 and replayed["mismatch/mean"] < 1e-5
    assert replayed["mismatch/routes"] > 0.25  # its own routers still say others


@pytest.mark.parametrize(
    ("overrides", "of"),
    [
        (["noise=0.1"], "dense"),
        (["stale_updates=3", "fp8=true"], "dense"),
        (["route_flips=0.2", "stale_updates=1"], "moe"),
        (["route_flips=0.2"], "replayed"),
    ],
)
def test_a_resume_goes_on_as_if_nothing_had_been(overrides, of, tmp_path):
    from nemo_algos.engines.local import checkpoint

    whole = planted(*overrides, of=of)
    for _ in range(2):
        whole.step()
    path = checkpoint.save(tmp_path, whole.state(), None)
    resumed = planted(*overrides, of=of)
    resumed.load(checkpoint.load(path))
    ends = []
    for made in (whole, resumed):
        steps = [made.step() for _ in range(2)]
        ends.append([{k: v for k, v in s.items() if not CLOCK.search(k)} for s in steps])
    assert ends[0] == ends[1] and torch.equal(trainers.weights(whole), trainers.weights(resumed))


def test_an_evaluation_samples_from_the_trained_weights():
    from nemo_algos.engines.local.evaluation import sample

    plain, made = trainers.trainer(), planted("noise=0.3")
    asked = 4, 8, 1234
    found = [sample(t.policy, t.task, *asked) for t in (plain, made)]
    assert found[0].lengths == found[1].lengths
    assert math.isfinite(made.step()["mismatch/mean"])


def test_the_trainer_replays_and_the_reference_does_not(monkeypatch):
    from nemo_algos.engines.local import build

    monkeypatch.setattr(build, "warm_start", lambda *_: moe().model)
    overrides = [MOE, "policy.router_replay.enabled=true"]
    cfg, algorithm = trainers.checked(*overrides, method="erpo")
    made = build.build_trainer(cfg, algorithm, Console(quiet=True))
    assert (made.policy.replays, made.reference.__self__.replays) == (True, False)
    cfg, algorithm = trainers.checked(MOE, method="erpo")
    assert not build.build_trainer(cfg, algorithm, Console(quiet=True)).policy.replays

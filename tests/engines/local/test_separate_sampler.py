"""A sampler apart from the trainer: whose numbers are whose, and routers that are replayed."""

import torch
import trainers
from rich.console import Console

from nemo_algos.engines.local import build
from nemo_algos.engines.local.evaluation import sample
from nemo_algos.engines.local.schema import SHAPES, TINY_MOE
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import SeparateSampler, TinyPolicy
from nemo_algos.engines.local.trainer import Trainer

MOE = f"policy.model_name={TINY_MOE}"


def moe(replays=False):
    torch.manual_seed(0)
    model = Tiny(SHAPES[TINY_MOE])
    for layer in model.layers:
        layer.router.gate.weight.data *= 20  # one expert weighs more than the other
    model.embed.weight.data *= 3
    return TinyPolicy(model, trainers.UP_TO_12, replays)


def test_the_policy_samples_itself_unless_it_trains_in_low_precision():
    plain, emulated = trainers.trainer(), trainers.trainer("policy.precision=mxfp8")
    assert plain.sampler is plain.policy
    assert type(emulated.sampler) is SeparateSampler and emulated.sampler.trained is emulated.policy


def test_each_side_says_its_own_probabilities():
    """So E[pi_trainer / pi_sampler] = 1, and E[log] < 0."""
    made = trainers.trainer(kind=trainers.NoisyTrainer)
    gaps = []
    for _ in range(8):
        drawn, rollouts = made.collect()
        gaps.append((drawn.logprobs - drawn.gen_logprobs)[drawn.mask].double())
        made.step_number += 1
    every = torch.cat(gaps)
    error = every.exp().std() / len(every) ** 0.5
    assert abs(float(every.exp().mean()) - 1) < 4 * error
    assert float(every.mean()) < 0
    rows = torch.arange(trainers.ROWS)
    with torch.no_grad():
        own, sampled = (p.logprobs(drawn, rows) for p in (made.policy, made.sampler))
    torch.testing.assert_close(rollouts.old_logprobs[drawn.mask], own[drawn.mask])
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(drawn.gen_logprobs[drawn.mask], sampled[drawn.mask], **close)


def test_an_evaluation_samples_from_the_trained_weights():
    made = trainers.trainer(), trainers.trainer(kind=trainers.NoisyTrainer)
    found = [sample(trainer.policy, trainer.task, 4, 8, 1234) for trainer in made]
    assert found[0].lengths == found[1].lengths


class OtherExperts(SeparateSampler):
    """Tokens go to other experts, weighted as before."""

    def __init__(self, trained):
        super().__init__(trained)
        for layer in self.model.layers:
            layer.router.top.register_forward_hook(
                lambda module, logits, _: module.forward(logits[0].roll(1, -1))
            )


class Routed(Trainer):
    def build_sampler(self):
        return OtherExperts(self.policy)


def test_replay_takes_the_distance_away():
    own, replayed = (
        trainers.trainer(MOE, trained=moe(replays), kind=Routed).step() for replays in (False, True)
    )
    assert own["mismatch/mean"] > 1e-3 and replayed["mismatch/mean"] < 1e-5
    assert replayed["mismatch/routes"] > 0.25  # its own routers still say others


def test_the_trainer_replays_and_the_reference_does_not(monkeypatch):
    monkeypatch.setattr(build, "warm_start", lambda *_: moe().model)
    overrides = [MOE, "policy.router_replay.enabled=true"]
    cfg, algorithm = trainers.checked(*overrides, method="erpo")
    made = build.build_trainer(cfg, algorithm, Console(quiet=True))
    assert (made.policy.replays, made.reference.__self__.replays) == (True, False)
    cfg, algorithm = trainers.checked(MOE, method="erpo")
    assert not build.build_trainer(cfg, algorithm, Console(quiet=True)).policy.replays

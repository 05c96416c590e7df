"""Policies beside the trained one: a sampler apart, its correction, a reference, a teacher."""

import io

import pytest
import torch
import trainers
from rich.console import Console
from rounding import rounding
from says import Says
from trainers import ROWS, update, weights

from nemo_algos.engines.data.schema import DataSection
from nemo_algos.engines.local import build, tiny_policy
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.evaluation import sample
from nemo_algos.engines.local.tiny_policy import SeparateSampler
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.local.updates import Updates
from nemo_algos.findings import ConfigError

ONE_UPDATE = "policy.train_global_batch_size=32"
PREFIX = "rollout_correction."


def block(**keys):
    return [f"{PREFIX}{k}={v}" for k, v in keys.items()]


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 8}, 2.0),
        ({"rollout_is": "token", "rollout_is_threshold": 1.5}, 1.5),
        ({"preset": "decoupled_token_is"}, 2.0),
        ({"preset": "decoupled_token_is", "rollout_is_batch_normalize": "true"}, 1.0),
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_1.5"}, 0.0),
        ({"preset": "decoupled_geo_rs"}, 0.0),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 2.1}, 1.0),
    ],
)
def test_weights_and_rejections_by_hand(keys, factor):
    plain, _ = update(ONE_UPDATE)
    got, metrics = update(ONE_UPDATE, *block(**keys), trained=trainers.mismatched())
    torch.testing.assert_close(got, factor * plain, rtol=0, atol=rounding())
    assert metrics["mismatch/mean"] == pytest.approx(0.693, abs=1e-3)
    rejected = factor == 0 and "preset" in keys
    assert metrics["correction/rejected_tokens"] == rejected
    assert metrics["length/mean"] > 0 and metrics["length/empty_share"] == 0


def test_old_as_the_sampler_makes_every_first_ratio_the_mismatch():
    got, metrics = update(ONE_UPDATE, *block(bypass_mode="true"), trained=trainers.mismatched())
    assert metrics["ratio/mean"] == pytest.approx(2, rel=1e-4)
    assert not [k for k in metrics if k.startswith("mismatch/")]
    plain, _ = update(ONE_UPDATE)
    two, ratios = update(ONE_UPDATE, *block(bypass_mode="true"))
    torch.testing.assert_close(two, plain, rtol=0, atol=rounding())
    assert ratios["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert not torch.allclose(got, plain, atol=rounding())


def scored(made, monkeypatch):
    """The rows that are scored without gradient by pi_old."""
    rows, stock = [], Updates.logprobs

    def spy(self, score, experience, of):
        if score == made.policy.logprobs:
            rows.extend(of.tolist())
        return stock(self, score, experience, of)

    monkeypatch.setattr(Updates, "logprobs", spy)
    return rows


@pytest.mark.parametrize(("two", "wanted"), [("false", ROWS), ("true", 0)])
def test_no_forward_for_old_log_probs(two, wanted, monkeypatch):
    """With a reference both log-probs are of one forward, else; the reference's stays."""
    penalty = "loss_fn.reference_policy_kl_penalty=0.01"
    made = trainers.trainer(penalty, *block(bypass_mode=two), "logger.trace_period=0")
    rows = scored(made, monkeypatch)
    metrics = made.step()
    assert len(rows) == wanted and metrics["kl/ref"] > 0


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (
            [*block(bypass_mode="true"), "mismatch.stop_above=0.1"],
            "mismatch.stop_above: bypass_mode",
        ),
        (
            [*block(rollout_is="token"), "loss_fn.use_importance_sampling_correction=true"],
            "loss_fn.use_importance_sampling_correction: rollout_correction",
        ),
        (block(preset="decoupled_geo"), "rollout_correction.preset: decoupled_geo_rs"),
        ([*block(bypass_mode="true"), "method.name=m2po"], "rollout_correction: m2po bypass_mode"),
    ],
)
def test_refusals(overrides, found):
    with pytest.raises(ConfigError) as error:
        trainers.checked(*overrides)
    assert [str(f) for f in error.value.findings] == [Says(found)]


KL = "loss_fn.reference_policy_kl_penalty=0.05"


@pytest.mark.parametrize(
    ("method", "more", "needed"),
    [("grpo", [], False), ("quatro", [], False), ("grpo", [KL], True), ("erpo", [], True)],
)
def test_a_reference_only_where_one_is_needed_and_it_stays(
    monkeypatch, tmp_path, method, more, needed
):
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    made = build_trainer(
        *trainers.checked(*more, method=method, optimizer=trainers.ADAM),
        Console(file=io.StringIO()),
    )
    assert (made.reference is not None) == needed
    if made.reference is None:
        return
    made.task = trainers.MadeUp(DataSection(), 0)
    start = weights(made)
    frozen = [p.clone() for p in made.reference.__self__.model.parameters()]
    assert torch.equal(torch.cat([p.flatten() for p in frozen]), start)
    assert not any(p.requires_grad for p in made.reference.__self__.model.parameters())
    first, second = made.step()["kl/ref"], made.step()["kl/ref"]
    assert 0 < first < 1e-2 < second and not torch.equal(weights(made), start)
    for parameter, before in zip(made.reference.__self__.model.parameters(), frozen, strict=True):
        assert torch.equal(parameter, before) and parameter.grad is None


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
        trainers.trainer(trainers.MOE, trained=trainers.moe(replays), kind=Routed).step()
        for replays in (False, True)
    )
    assert own["mismatch/mean"] > 1e-3 and replayed["mismatch/mean"] < 1e-5
    assert replayed["mismatch/routes"] > 0.25  # its own routers still say others


def test_the_trainer_replays_and_the_reference_does_not(monkeypatch):
    monkeypatch.setattr(build, "warm_start", lambda *_: trainers.moe().model)
    overrides = [trainers.MOE, "policy.router_replay.enabled=true"]
    cfg, algorithm = trainers.checked(*overrides, method="erpo")
    made = build.build_trainer(cfg, algorithm, Console(quiet=True))
    assert (made.policy.replays, made.reference.__self__.replays) == (True, False)
    cfg, algorithm = trainers.checked(trainers.MOE, method="erpo")
    assert not build.build_trainer(cfg, algorithm, Console(quiet=True)).policy.replays


@pytest.fixture
def teacher(tmp_path):
    trainers.policy(seed=1).save(str(tmp_path / "teacher"))
    return tmp_path / "teacher"


def distilled(monkeypatch, tmp_path, folder):
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    larger = ("grpo.num_prompts_per_step=32", "policy.train_global_batch_size=64")
    named = f"method.teacher={folder}"
    checked = trainers.checked(named, *larger, method="opd", optimizer=trainers.ADAM)
    made = build_trainer(*checked, Console(file=io.StringIO()))
    made.task = trainers.MadeUp(DataSection(), 0)
    return made


def distance(made):
    """Mean log pi - log pi_teacher of whole new responses to the same prompts, nats."""
    examples = made.task.examples(0, 32)
    prompts = [made.policy.encode(made.task.prompt(example)) for example in examples]
    drawn = made.policy.generate(prompts, 16, torch.Generator().manual_seed(0))
    reference = made.update.logprobs(made.reference, drawn, torch.arange(len(drawn.group)))
    return float((drawn.logprobs - reference).where(drawn.mask, 0.0).sum(1).mean())


def test_the_policy_moves_to_its_teacher(monkeypatch, tmp_path, teacher):
    made = distilled(monkeypatch, tmp_path, teacher)
    before = distance(made)
    for _ in range(12):
        made.step()
    assert before > 15 and distance(made) < 0.75 * before  # 0.53 or 0.60, by the processor
    assert not any(p.requires_grad for p in made.reference.__self__.model.parameters())


@pytest.mark.parametrize(
    ("overrides", "method", "path"),
    [
        ([], "opd", "method.teacher"),
        (["method.advantages=opd"], "grpo", "method.advantages.teacher"),
        (
            ["method.teacher=x", "loss_fn.reference_policy_kl_penalty=0.1"],
            "opd",
            "loss_fn.reference_policy_kl_penalty",
        ),
    ],
)
def test_refused(overrides, method, path):
    with pytest.raises(ConfigError) as error:
        trainers.checked(*overrides, method=method)
    assert path in [finding.path for finding in error.value.findings]


def test_a_teacher_of_other_tokens_is_refused(monkeypatch, tmp_path, teacher):
    vocabulary = teacher / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace('"1"', '"?"').replace('"2"', '"1"'))
    with pytest.raises(ConfigError) as error:
        distilled(monkeypatch, tmp_path, teacher)
    assert error.value.findings[0].path == "method.teacher"

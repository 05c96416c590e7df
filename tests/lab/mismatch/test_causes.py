"""Planted in real logits, a cause is named; where nothing is planted, none is."""

from dataclasses import replace
from itertools import product

import numpy as np
import plant
import pytest
import torch
import toys
from says import Says

from nemo_algos.lab.mismatch.causes import CAUSES
from nemo_algos.lab.mismatch.rules import RULES
from nemo_algos.lab.mismatch.verdict import diagnose

PLANTED = list(product(plant.CASES, range(3)))


@pytest.fixture(scope="module")
def toy():
    with torch.random.fork_rng():
        return toys.countdown(rows=128, seed=3)


@pytest.fixture(scope="module")
def dumps(toy):
    """Of each cause a case of each strength, each by another case."""
    return {(cause, k): plant.CASES[cause][k](toy, k) for cause, k in PLANTED}


def test_every_cause_has_its_texts_and_a_rule():
    assert {*CAUSES} == {*plant.CASES} == {name for name, _ in RULES} and len(CAUSES) == 12


def test_at_least_30_of_36_are_named_right(dumps):
    named = {where: diagnose([dump]).name for where, dump in dumps.items()}
    wrong = [
        f"{cause} {k} -> {named[cause, k]}" for cause, k in PLANTED if named[cause, k] != cause
    ]
    assert len(PLANTED) == 36 and len(wrong) <= 6, wrong


def test_no_cause_is_named_on_20_clean_runs(toy):
    verdicts = [diagnose([plant.clean(toy, i % 3)]) for i in range(20)]
    assert [v.name for v in verdicts] == ["clean"] * 20
    assert all(v.found == Says("float32") and not v.tests for v in verdicts)


def test_a_copy_is_said_to_be_one(toy):
    dump = plant.clean(toy, 0)
    verdict = diagnose([replace(dump, trainer_logprobs=dump.sampler_logprobs)])
    assert verdict.name == "clean"
    assert verdict.found == Says("same bypass")


UNMISTAKABLE = ("temperature", "truncation", "shift", "stale_cache", "routing")


@pytest.mark.parametrize("cause", UNMISTAKABLE)
def test_they_are_named_without_optional_fields(dumps, cause):
    for k in range(3):
        bare = replace(dumps[cause, k], entropy=None, prompt_length=None, weights_version=None)
        assert diagnose([bare]).name == diagnose([dumps[cause, k]]).name


def test_few_tokens_tell_nothing(dumps):
    for dump in dumps.values():
        few = type(dump)(**{name: array[:7] for name, array in dump.arrays().items()})
        verdict = diagnose([few])
        assert verdict.name == "few" and not verdict.tests
        assert verdict.found == Says(f"{few.mask.sum()} 7")
        assert verdict.cause.next_step == Says("200 8")


def test_certain_tokens_tell_nothing(dumps):
    dump = dumps["temperature", 2]
    sure = -1e-4 * np.ones(dump.mask.shape)
    verdict = diagnose([replace(dump, sampler_logprobs=sure, trainer_logprobs=2 * sure - 0.0011)])
    assert verdict.name == "few"
    assert verdict.found == Says(f"{dump.mask.sum()} 0")


def test_several_files_are_one_sample(dumps):
    dump = dumps["temperature", 1]
    halves = [
        type(dump)(**{name: array[half] for name, array in dump.arrays().items()})
        for half in (slice(0, 64), slice(64, None))
    ]
    one, both = diagnose([dump]), diagnose(halves)
    assert both.name == "temperature"
    assert both.tests["temperature"].effect == pytest.approx(one.tests["temperature"].effect)


def test_tokens_that_are_no_numbers_are_left_out(dumps):
    dump = dumps["shift", 2]
    broken = dump.trainer_logprobs.copy()
    broken[:8, 0] = np.nan
    verdict = diagnose([replace(dump, trainer_logprobs=broken)])
    assert verdict.name == "shift" and len(verdict.tokens.d) == dump.mask.sum() - 8
    assert verdict.numbers()["not_finite"] == 8


def test_without_a_finite_token_there_is_an_error(dumps):
    dump = dumps["shift", 2]
    nothing = replace(dump, trainer_logprobs=np.full(dump.mask.shape, np.nan))
    with pytest.raises(ValueError, match="finite"):
        diagnose([nothing])


def test_the_age_of_the_weights_decides(toy):
    """The same numbers: old weights with ages; a LoRA merge where the newer are worse."""
    dump = plant.half_old_weights(toy, 1)
    assert diagnose([dump]).name == "old_weights"
    turned = replace(dump, weights_version=-dump.weights_version)
    assert diagnose([turned]).name == "lora"


def test_weights_that_are_known_to_be_old_are_the_cause(dumps):
    """All of one age, whatever the look; temperature and flips are seen beside it."""
    for cause in ("bad_layer", "precision", "temperature", "routing"):
        dump, was = dumps[cause, 2], diagnose([dumps[cause, 2]]).name
        aged, rows = {"step": np.array(7)}, len(dump.mask)
        now = diagnose([replace(dump, **aged, weights_version=np.full(rows, 5))])
        kept = cause in ("temperature", "routing")
        assert now.name == (was if kept else "old_weights")
        assert diagnose([replace(dump, **aged, weights_version=np.full(rows, 7))]).name == was
    found = diagnose(
        [replace(dumps["bad_layer", 2], **aged, weights_version=np.full(rows, 5))]
    ).found
    assert found == Says("weights 2")


def test_the_temperature_is_estimated(dumps):
    """Of two outcomes the log-odds are inverse to it."""
    odds = np.random.default_rng(0).normal(1, 2, dumps["temperature", 0].mask.shape)
    trainer, sampler = (-np.logaddexp(0, -x) for x in (odds, 1.25 * odds))
    pair = {"trainer_logprobs": trainer, "sampler_logprobs": sampler}
    verdict = diagnose([replace(dumps["temperature", 0], **pair)])
    assert verdict.found == Says("98% -1.00 1.25")


def test_tokens_drawn_otherwise_than_recorded(toy):
    """Both record the whole distribution at temperature 1, and one draws at another."""
    raw = replace(toy.own, temperature=0.6, recorded="raw")
    dump = toy.pair(raw, toy.own)
    verdict = diagnose([dump])
    assert verdict.name == "temperature" and "less surprising than their entropy" in verdict.found
    assert diagnose([replace(dump, entropy=None)]).name == "clean"


def test_old_weights_over_a_floor_of_noise(toy, dumps):
    """Responses of two levels, none of them exact."""
    dump, generator = plant.stale_prompts(toy, 2), np.random.default_rng(0)
    noise = 2e-3 * generator.standard_normal(dump.mask.shape)
    noisy = np.minimum(dump.trainer_logprobs + noise * -np.expm1(dump.trainer_logprobs), 0)
    assert diagnose([replace(dump, trainer_logprobs=noisy)]).name == "stale_cache"

"""What one number for each token decides, and where two sides differ: what those tokens share."""

import numpy as np
import pytest
from matrix import some_of
from pytest import approx as near

from nemo_algos.engines.dumps.dump import from_arrays
from nemo_algos.lab.mismatch.verdict import diagnose

ROWS, LENGTH = 32, 24
SAMPLER = "sampler_logprobs"
TRAINER = "trainer_logprobs"


def numbers(seed=0, noise=0.03):
    """Two sides of the same tokens, apart by noise."""
    draws = np.random.default_rng(seed)
    trainer = -draws.exponential(1.5, (ROWS, LENGTH))
    sampler = np.minimum(trainer + noise * draws.normal(size=trainer.shape), 0)
    tokens = draws.integers(3, 90, trainer.shape)
    return {"tokens": tokens, "sampler_logprobs": sampler, "trainer_logprobs": trainer}


def of(side, change):
    """A plant that changes one side's log-probs."""
    return lambda a: a.update({side: change(a[side])})


def swapped(a):
    a[TRAINER][[3, 9]] = a[TRAINER][[9, 3]]


def ended(a):
    a["tokens"][::2, -1] = 2
    a[TRAINER][::2, -1] = -0.6
    a[SAMPLER][::2, -1] = 0


def retokenized(a):
    for row in range(0, ROWS, 4):
        a[TRAINER][row, 8:-1] = a[TRAINER][row, 9:]


def some_shifted(a):
    a[TRAINER][::4, :-1] = a[TRAINER][::4, 1:]


def some_shifted_and_one_other_way(a):
    some_shifted(a)
    a[TRAINER][1, 1:] = a[TRAINER][1, :-1].copy()


@pytest.mark.parametrize(
    "plant, name, parameter",
    [
        (of(TRAINER, lambda x: np.roll(x, 1, 1)), "shift", {"places": 1}),
        (of(SAMPLER, lambda x: x / np.log(2)), "log_base", {"base": 2}),
        (of(SAMPLER, lambda x: np.maximum(x, -2.5)), "clamp", {"least": -2.5}),
        (swapped, "rows", {"responses": 2}),
        (ended, "end_of_response", {}),
        (of(TRAINER, lambda x: x * (np.arange(LENGTH) < 16)), "padding", {"from_place": 16}),
        (of(SAMPLER, np.zeros_like), "greedy", {}),
        (retokenized, "retokenized", {"responses": 8}),
        (some_shifted, "shift", {"places": -1, "responses": 8, "of": 32}),
        (some_shifted_and_one_other_way, "shift", {"places": -1, "responses": 9, "of": 32}),
        (of(TRAINER, lambda x: x / np.log(10)), "log_base", {"base": 10}),
        (of(SAMPLER, lambda x: x / 0.667), "log_factor", {"factor": near(1 / 0.667, rel=0.01)}),
        (of(SAMPLER, lambda x: x / 0.6), "log_factor", {"factor": near(1 / 0.6, rel=0.01)}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_an_identity_is_named(plant, name, parameter, seed):
    arrays = numbers(seed)
    plant(arrays)
    verdict = diagnose([from_arrays(arrays)])
    assert verdict.verdict == name
    found = verdict.causes[0].parameter
    assert {key: found.get(key) for key in parameter} == parameter


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_name(noise, seed):
    verdict = diagnose([from_arrays(numbers(seed, noise))])
    assert verdict.verdict == "unknown" and verdict.candidates and not verdict.causes


@pytest.mark.parametrize("off, verdict", [(19e-4, "clean"), (21e-4, "unknown")])
def test_one_token_that_is_off_by_20_times_the_mean_is_not_clean(off, verdict):
    arrays = numbers(noise=0)
    arrays[SAMPLER][3, 4] -= off
    assert diagnose([from_arrays(arrays)]).verdict == verdict


@pytest.mark.parametrize("mean, verdict", [(0.9e-4, "clean"), (1.1e-4, "unknown")])
def test_a_mean_above_that_of_float32_is_not_clean(mean, verdict):
    arrays = numbers(noise=0)
    arrays[SAMPLER] -= mean
    assert diagnose([from_arrays(arrays)]).verdict == verdict


@pytest.mark.parametrize(
    "rows, length, verdict",
    [(8, 25, "unknown"), (7, 40, "few"), (9, 22, "few"), (10, 20, "unknown")],
)
def test_200_tokens_of_8_responses_are_enough(rows, length, verdict):
    draws = np.random.default_rng(0)
    trainer = -draws.exponential(1.5, (rows, length))
    sampler = np.minimum(trainer + 0.03 * draws.normal(size=trainer.shape), 0)
    tokens = draws.integers(3, 90, trainer.shape)
    arrays = {"tokens": tokens, "sampler_logprobs": sampler, "trainer_logprobs": trainer}
    assert diagnose([from_arrays(arrays)]).verdict == verdict


def test_tokens_that_surprise_are_not_clean():
    arrays = numbers(noise=0)
    arrays["entropy"] = -arrays[SAMPLER] + 0.3
    assert "recorded_before" in diagnose([from_arrays(arrays)]).candidates


def test_log_probs_that_are_not_finite_come_first():
    arrays = numbers()
    arrays[TRAINER][3, 4] = np.nan
    verdict = diagnose([from_arrays(arrays)])
    assert verdict.verdict == "not_finite" and verdict.causes[0].side == "trainer"
    assert verdict.numbers()["not_finite"] == 1


def test_the_age_of_the_weights_decides():
    arrays = numbers()
    age = np.arange(ROWS) % 4
    draws = np.random.default_rng(5)
    more = 0.1 * age[:, None] * draws.normal(size=(ROWS, LENGTH))
    arrays[SAMPLER] = np.minimum(arrays[SAMPLER] + more, 0)
    verdict = diagnose([from_arrays(arrays | {"weights_version": 7 - age, "step": 7})])
    assert verdict.verdict == "old_weights" and verdict.causes[0].parameter == {"oldest": 3}


def test_few_tokens_tell_nothing():
    arrays = {name: values[:4] for name, values in numbers().items()}
    assert diagnose([from_arrays(arrays)]).verdict == "few"


def test_several_files_are_one_sample():
    arrays = numbers()
    halves = [{k: v[part] for k, v in arrays.items()} for part in (slice(16), slice(16, None))]
    one, two = diagnose([from_arrays(arrays)]), diagnose([from_arrays(half) for half in halves])
    assert one.numbers() == two.numbers()


RESPONSES, PROMPT, VOCABULARY = 64, 40, 1500


def arrays(seed, noise=0.02):
    """Rows with prompts of 4 to 40 tokens, four of each; rounding grows with what p leaves."""
    draws = np.random.default_rng(seed)
    shape = (RESPONSES, PROMPT + LENGTH)
    tokens = draws.integers(3, VOCABULARY, shape)
    tokens[:, :PROMPT] = tokens[np.arange(RESPONSES) // 4 * 4, :PROMPT]
    mask = np.zeros(shape, bool)
    mask[:, PROMPT:] = np.arange(LENGTH) < draws.integers(8, LENGTH + 1, (RESPONSES, 1))
    trainer = -draws.exponential(1.0, shape)
    rounding = noise * draws.normal(size=shape) * (1 - np.exp(trainer))
    return {
        "tokens": tokens,
        "mask": mask,
        "sampler_logprobs": np.minimum(trainer + rounding, 0),
        "trainer_logprobs": trainer,
        "prompt_length": np.repeat(draws.integers(4, PROMPT + 1, RESPONSES // 4), 4),
        "weights_version": 9 - np.arange(RESPONSES) % 3,
        "step": 9,
    }


def moved(a, where, seed=0):
    """The sampler is off by 0.3 nats there."""
    away = 0.3 * np.random.default_rng(seed).normal(size=where.shape)
    a[SAMPLER] = np.minimum(a[SAMPLER] + np.where(where, away, 0), 0)


ROW, PLACE = np.arange(RESPONSES)[:, None], np.arange(PROMPT + LENGTH) - PROMPT
PLANTS = {
    "a quarter of the rows": (lambda a: ROW % 4 == 1, "response", "1, 5, 9, ..."),
    "the second half": (lambda a: ROW >= 32, "response", "32 to 63"),
    "one response": (lambda a: ROW == 17, "response", "17"),
    "place 5": (lambda a: PLACE == 5, "place", "5"),
    "late places": (lambda a: PLACE >= 16, "place", "16 to 23"),
    "some ids": (lambda a: (a["tokens"] >= 5) & (a["tokens"] <= 400), "token id", (5, 400)),
    "one id": (lambda a: a["tokens"] == 7, "token id", "7"),
    "long prompts": (lambda a: a["prompt_length"][:, None] > 24, "prompt length", (25, 40)),
    "one prompt": (lambda a: ROW // 4 == 3, "prompt of response", "12"),
    "two prompts": (lambda a: np.isin(ROW // 4, (2, 7)), "prompt of response", "8, 28"),
    "old weights": (lambda a: a["weights_version"][:, None] == 7, "age of the weights", "2"),
}


def found(a):
    return diagnose([from_arrays(a)]).where


@pytest.mark.parametrize("seed", some_of(range(3), 1))
@pytest.mark.parametrize("name", PLANTS)
def test_what_the_tokens_share_stands_alone(name, seed):
    plant, by, values = PLANTS[name]
    a = arrays(seed)
    if name == "one id":
        a["tokens"][np.arange(RESPONSES), PROMPT + np.arange(RESPONSES) * 5 % 8] = 7
    moved(a, plant(a))
    (bucket,) = found(a)
    assert bucket.by == by
    if isinstance(values, str):
        assert bucket.values == values
    else:
        assert np.allclose([*map(int, bucket.values.split(" to "))], values, atol=15)
    assert bucket.mean > 4 * bucket.elsewhere


@pytest.mark.parametrize("name", PLANTS)
def test_no_guess_contradicts_where_the_difference_is(name):
    """The sampler gives the tokens there a higher probability, and both sides agree elsewhere."""
    a = arrays(0, noise=0)
    there = PLANTS[name][0](a)
    a[SAMPLER] = np.where(there, 0.7 * a[TRAINER], a[TRAINER])
    verdict = diagnose([from_arrays(a)])
    guesses = {cause.name for cause in verdict.causes} | {*verdict.candidates}
    assert guesses and not guesses & {"top_p", "top_k", "min_p", "vocabulary_padding"}


@pytest.mark.parametrize("seed", some_of(range(5), 2))
@pytest.mark.parametrize("off", [0.0, 0.02, 0.5])
def test_what_is_scattered_or_everywhere_has_no_place(off, seed):
    """Rounding alone, rare large errors, and errors in half of the tokens."""
    a = arrays(seed)
    hit = np.random.default_rng(seed + 50).random(a["tokens"].shape) < off
    a[SAMPLER] = a[SAMPLER] - np.where(hit, 8.0, 0)
    assert found(a) == []


def test_two_places_are_both_told_the_clearer_first():
    a = arrays(0)
    moved(a, (ROW % 4 == 1) | (PLACE == 5))
    buckets = found(a)
    assert [(b.by, b.values) for b in buckets] == [("response", "1, 5, 9, ..."), ("place", "5")]


def test_the_worst_tokens_come_first_with_both_log_probs():
    a = arrays(0)
    a[TRAINER][11, PROMPT + 3] = -14.5
    verdict = diagnose([from_arrays(a)])
    worst = verdict.numbers()["worst"]
    token = a["tokens"][11, PROMPT + 3]
    assert (worst[0]["response"], worst[0]["place"], worst[0]["token"]) == (11, 3, token)
    assert worst[0]["trainer"] == -14.5 and len(worst) == 20

"""What one number for each token decides: identities; everything else is unknown."""

import numpy as np
import pytest

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.verdict import diagnose

ROWS, LENGTH = 32, 24


def numbers(seed=0, noise=0.03):
    """Two sides of the same tokens, apart by noise."""
    draws = np.random.default_rng(seed)
    trainer = -draws.exponential(1.5, (ROWS, LENGTH))
    sampler = np.minimum(trainer + noise * draws.normal(size=trainer.shape), 0)
    tokens = draws.integers(3, 90, trainer.shape)
    return {"tokens": tokens, "sampler_logprobs": sampler, "trainer_logprobs": trainer}


def shifted(a):
    a["trainer_logprobs"] = np.roll(a["trainer_logprobs"], 1, 1)


def base_2(a):
    a["sampler_logprobs"] = a["sampler_logprobs"] / np.log(2)


def clamped(a):
    a["sampler_logprobs"] = np.maximum(a["sampler_logprobs"], -2.5)


def swapped(a):
    a["trainer_logprobs"][[3, 9]] = a["trainer_logprobs"][[9, 3]]


def ended(a):
    a["tokens"][::2, -1] = 2
    a["trainer_logprobs"][::2, -1] = -0.6
    a["sampler_logprobs"][::2, -1] = 0


def zeros(a):
    a["trainer_logprobs"][:, 16:] = 0


def greedy(a):
    a["sampler_logprobs"][:] = 0


def retokenized(a):
    for row in range(0, ROWS, 4):
        a["trainer_logprobs"][row, 8:-1] = a["trainer_logprobs"][row, 9:]


def some_shifted(a):
    a["trainer_logprobs"][::4, :-1] = a["trainer_logprobs"][::4, 1:]


def some_shifted_and_one_other_way(a):
    some_shifted(a)
    a["trainer_logprobs"][1, 1:] = a["trainer_logprobs"][1, :-1].copy()


def base_10_of_the_trainer(a):
    a["trainer_logprobs"] = a["trainer_logprobs"] / np.log(10)


def divided(a):
    a["sampler_logprobs"] = a["sampler_logprobs"] / 0.6


def divided_by_nearly_log_2(a):
    a["sampler_logprobs"] = a["sampler_logprobs"] / 0.667


@pytest.mark.parametrize(
    "plant, name, parameter",
    [
        (shifted, "shift", {"places": 1}),
        (base_2, "log_base", {"base": 2}),
        (clamped, "clamp", {"least": -2.5}),
        (swapped, "rows", {"responses": 2}),
        (ended, "end_of_response", {}),
        (zeros, "padding", {"from_place": 16}),
        (greedy, "greedy", {}),
        (retokenized, "retokenized", {"responses": 8}),
        (some_shifted, "shift", {"places": -1, "responses": 8, "of": 32}),
        (some_shifted_and_one_other_way, "shift", {"places": -1, "responses": 9, "of": 32}),
        (base_10_of_the_trainer, "log_base", {"base": 10}),
        (divided_by_nearly_log_2, "log_factor", {"factor": pytest.approx(1 / 0.667, rel=0.01)}),
        (divided, "log_factor", {"factor": pytest.approx(1 / 0.6, rel=0.01)}),
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
    arrays["sampler_logprobs"][3, 4] -= off
    assert diagnose([from_arrays(arrays)]).verdict == verdict


@pytest.mark.parametrize("mean, verdict", [(0.9e-4, "clean"), (1.1e-4, "unknown")])
def test_a_mean_above_that_of_float32_is_not_clean(mean, verdict):
    arrays = numbers(noise=0)
    arrays["sampler_logprobs"] -= mean
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
    arrays["entropy"] = -arrays["sampler_logprobs"] + 0.3
    assert "recorded_before" in diagnose([from_arrays(arrays)]).candidates


def test_log_probs_that_are_not_finite_come_first():
    arrays = numbers()
    arrays["trainer_logprobs"][3, 4] = np.nan
    verdict = diagnose([from_arrays(arrays)])
    assert verdict.verdict == "not_finite" and verdict.causes[0].side == "trainer"
    assert verdict.numbers()["not_finite"] == 1


def test_the_age_of_the_weights_decides():
    arrays = numbers()
    age = np.arange(ROWS) % 4
    draws = np.random.default_rng(5)
    more = 0.1 * age[:, None] * draws.normal(size=(ROWS, LENGTH))
    arrays["sampler_logprobs"] = np.minimum(arrays["sampler_logprobs"] + more, 0)
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

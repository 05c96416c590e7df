"""Where two sides differ: what the tokens share, and nothing where they share nothing."""

import numpy as np
import pytest
from matrix import some_of

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.verdict import diagnose

ROWS, PROMPT, LENGTH, VOCABULARY = 64, 40, 24, 1500


def arrays(seed, noise=0.02):
    """Rows with prompts of 4 to 40 tokens, four of each; rounding grows with what p leaves."""
    draws = np.random.default_rng(seed)
    shape = (ROWS, PROMPT + LENGTH)
    tokens = draws.integers(3, VOCABULARY, shape)
    tokens[:, :PROMPT] = tokens[np.arange(ROWS) // 4 * 4, :PROMPT]
    mask = np.zeros(shape, bool)
    mask[:, PROMPT:] = np.arange(LENGTH) < draws.integers(8, LENGTH + 1, (ROWS, 1))
    trainer = -draws.exponential(1.0, shape)
    rounding = noise * draws.normal(size=shape) * (1 - np.exp(trainer))
    return {
        "tokens": tokens,
        "mask": mask,
        "sampler_logprobs": np.minimum(trainer + rounding, 0),
        "trainer_logprobs": trainer,
        "prompt_length": np.repeat(draws.integers(4, PROMPT + 1, ROWS // 4), 4),
        "weights_version": 9 - np.arange(ROWS) % 3,
        "step": 9,
    }


def moved(a, where, seed=0):
    """The sampler is off by 0.3 nats there."""
    away = 0.3 * np.random.default_rng(seed).normal(size=where.shape)
    a["sampler_logprobs"] = np.minimum(a["sampler_logprobs"] + np.where(where, away, 0), 0)


ROW, PLACE = np.arange(ROWS)[:, None], np.arange(PROMPT + LENGTH) - PROMPT
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
        a["tokens"][np.arange(ROWS), PROMPT + np.arange(ROWS) * 5 % 8] = 7
    moved(a, plant(a))
    (bucket,) = found(a)
    assert bucket.by == by
    if isinstance(values, str):
        assert bucket.values == values
    else:
        assert np.allclose([*map(int, bucket.values.split(" to "))], values, atol=15)
    assert bucket.mean > 4 * bucket.elsewhere


@pytest.mark.parametrize("seed", some_of(range(5), 2))
@pytest.mark.parametrize("off", [0.0, 0.02, 0.5])
def test_what_is_scattered_or_everywhere_has_no_place(off, seed):
    """Rounding alone, rare large errors, and errors in half of the tokens."""
    a = arrays(seed)
    hit = np.random.default_rng(seed + 50).random(a["tokens"].shape) < off
    a["sampler_logprobs"] = a["sampler_logprobs"] - np.where(hit, 8.0, 0)
    assert found(a) == []


def test_two_places_are_both_told_the_clearer_first():
    a = arrays(0)
    moved(a, (ROW % 4 == 1) | (PLACE == 5))
    buckets = found(a)
    assert [(b.by, b.values) for b in buckets] == [("response", "1, 5, 9, ..."), ("place", "5")]


def test_the_worst_tokens_come_first_with_both_log_probs():
    a = arrays(0)
    a["trainer_logprobs"][11, PROMPT + 3] = -14.5
    verdict = diagnose([from_arrays(a)])
    worst = verdict.numbers()["worst"]
    token = a["tokens"][11, PROMPT + 3]
    assert (worst[0]["response"], worst[0]["place"], worst[0]["token"]) == (11, 3, token)
    assert worst[0]["trainer"] == -14.5 and len(worst) == 20

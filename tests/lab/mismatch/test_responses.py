"""Which responses are off, and how a prompt's length tells what it is: hand-made numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from says import Says

from nemo_algos.engines.mismatch.dump import Dump
from nemo_algos.lab.mismatch.picture import picture
from nemo_algos.lab.mismatch.tokens import gather
from nemo_algos.lab.mismatch.verdict import diagnose

PROMPTS, SAMPLES, LENGTH, VOCABULARY = 12, 4, 16, 40
ROWS, WIDTH = PROMPTS * SAMPLES, 200
EVERY = np.arange(ROWS)


def made(lengths, change, seed=0):
    """Prompts of these lengths [P], left-padded with 0; change [ROWS,LENGTH] of the odds."""
    rng = np.random.default_rng(seed)
    asked = [rng.integers(1, VOCABULARY, n) for n in lengths]
    prompts = [np.pad(ids, (WIDTH - len(ids), 0)) for ids in asked]
    tokens = np.concatenate(
        (np.repeat(prompts, SAMPLES, 0), rng.integers(1, VOCABULARY, (ROWS, LENGTH))), 1
    )
    odds = rng.normal(0, 2, (ROWS, LENGTH))
    columns = {"sampler_logprobs": odds - change / 2, "trainer_logprobs": odds + change / 2}
    columns = {k: np.pad(-np.logaddexp(0, -x), ((0, 0), (WIDTH, 0))) for k, x in columns.items()}
    mask = np.arange(WIDTH + LENGTH) >= np.full((ROWS, 1), WIDTH)
    return Dump(tokens, mask, **columns, prompt_length=np.repeat(lengths, SAMPLES))


def noise(rows, seed=1):
    """A change of about .3 nats in these responses, noise of float32 in the others."""
    sizes = np.where(np.isin(EVERY, rows), 0.3, 1e-7)
    return sizes[:, None] * np.random.default_rng(seed).normal(size=(ROWS, LENGTH))


LENGTHS = np.array([30, 42, 18, 55, 23, 47, 36, 12, 61, 27, 50, 15])
SHORTER = np.repeat(LENGTHS.reshape(-1, 3).max(1, keepdims=True) > LENGTHS.reshape(-1, 3), SAMPLES)


def test_behind_padding_to_the_longest_of_a_micro_batch():
    """Of three prompts, so of 12 responses, the longest's are exact."""
    verdict = diagnose([made(LENGTHS, noise(EVERY[SHORTER]))])
    assert verdict.name == "prefix"
    assert verdict.found == Says("100% padding")


def test_behind_padding_to_the_longest_prompt_with_its_response():
    """In micro-batches of 6; responses end at 8 to 16 tokens."""
    dump, rng = made(LENGTHS, noise([])), np.random.default_rng(3)
    lengths = rng.integers(8, 17, ROWS)
    mask = dump.mask & (np.arange(WIDTH + LENGTH) < WIDTH + lengths[:, None])
    whole = (np.repeat(LENGTHS, SAMPLES) + lengths).reshape(-1, 6)
    off = EVERY[(whole < whole.max(1, keepdims=True)).ravel()]
    verdict = diagnose([replace(made(LENGTHS, noise(off)), mask=mask)])
    assert verdict.name == "prefix" and verdict.found == Says("100%")


@pytest.mark.parametrize(("scale", "named"), [(3, "packing"), (1, "stale_cache")])
def test_far_prompts_are_long(scale, named):
    """Off beyond 126 tokens: positions; beyond 42: nothing is wrong with those."""
    off = EVERY[np.repeat(LENGTHS, SAMPLES) >= 42]
    verdict = diagnose([made(scale * LENGTHS, noise(off))])
    assert verdict.name == named
    if named == "packing":
        assert verdict.found == Says("100% 126")


def test_of_whole_prompts_it_is_the_cache_and_else_the_pack():
    """Of prompts that are no matter of length; of most responses; of a few."""
    prompts = np.isin(EVERY // SAMPLES, [0, 3, 4, 7, 9, 10])
    verdict = diagnose([made(LENGTHS, noise(EVERY[prompts]))])
    assert verdict.name == "stale_cache" and verdict.found == Says("100% prompt")
    rng = np.random.default_rng(5)
    for share, named in ((0.8, "packing"), (0.3, "stale_cache")):
        some = rng.permutation(ROWS)[: round(share * ROWS)]
        assert diagnose([made(LENGTHS, noise(some))]).name == named


@pytest.mark.parametrize("field", ["prompt_length", None])
@pytest.mark.parametrize(("sign", "named"), [(1, "stale_cache"), (-1, "prefix")])
def test_a_change_that_fades_and_the_length_of_the_prompt(sign, named, field):
    """What was cached weighs with the prompt's length; a wrong beginning is further away."""
    size = 0.3 * (np.repeat(LENGTHS, SAMPLES) / 30) ** sign
    change = size[:, None] * np.exp(-np.arange(LENGTH) / 4)
    dump = made(LENGTHS, change * np.random.default_rng(2).normal(size=change.shape))
    assert diagnose([dump if field else replace(dump, prompt_length=None)]).name == named


def test_some_prompts_four_times_as_far_off_as_others_are():
    """Over a floor of noise, no response is exact."""
    size = np.where(np.isin(EVERY // SAMPLES, [0, 3, 4, 7, 9, 10]), 0.08, 0.02)[:, None]
    verdict = diagnose([made(LENGTHS, size * np.random.default_rng(2).normal(size=(ROWS, LENGTH)))])
    assert verdict.name == "stale_cache" and verdict.found == Says("92% prompt")


def test_a_wrong_beginning_fades_from_the_first_token_of_response_or_prompt():
    """The first two tokens three times as far off; or the less, the further from the prompt's."""
    rng, places = np.random.default_rng(6), np.arange(LENGTH)
    sizes = np.where(places < 2, 0.15, 0.05)
    assert diagnose([made(LENGTHS, sizes * rng.normal(size=(ROWS, LENGTH)))]).name == "prefix"
    sizes = 0.3 * np.exp(-(2 * np.repeat(LENGTHS, SAMPLES)[:, None] + places) / 60)
    verdict = diagnose([made(2 * LENGTHS, sizes * rng.normal(size=sizes.shape))])
    assert verdict.name == "prefix"
    assert "prompt" in verdict.found and " -0." in verdict.found


def test_what_is_shown_and_not_the_network():
    """Large, of no token and no odds: another context; less so, attention; small, rounding."""
    noise = np.random.default_rng(7).normal(size=(ROWS, LENGTH))
    for size, named in ((4, "prefix"), (1.5, "shift"), (0.5, "packing"), (0.02, "precision")):
        assert diagnose([made(LENGTHS, size * noise)]).name == named
    heavy = np.sign(noise) * np.exp(1.45 * np.random.default_rng(9).normal(size=noise.shape))
    assert diagnose([made(LENGTHS, 0.02 * heavy)]).name == "routing"  # e**-2.1 = .12 of the spread
    rare = made(LENGTHS, 0.1 * noise).trainer_logprobs[:, WIDTH:] < -2
    of_odds = 0.1 * noise + np.where(rare, 0.1, 0)  # an odds' own share: of no rounding
    assert diagnose([made(LENGTHS, of_odds)]).name == "bad_layer"


def test_log_probs_kept_in_bf16_are_rounded():
    """Rare tokens' by more, as noise in hidden states moves them; and it is too little for that."""
    dump = made(LENGTHS, noise([]))
    kept = torch.tensor(dump.sampler_logprobs).bfloat16().double().numpy()
    assert diagnose([replace(dump, sampler_logprobs=kept)]).name == "precision"


def test_lengths_and_prompts_are_read_off_the_tokens():
    dump = made(LENGTHS, noise([]))
    both = [gather([x, x]) for x in (dump, replace(dump, prompt_length=None))]
    assert (
        both[0].length.tolist()
        == both[1].length.tolist()
        == np.tile(LENGTHS, (2, 1)).repeat(SAMPLES).tolist()
    )
    same = [np.unique(t.prompt, return_counts=True)[1].tolist() for t in both]
    assert same == [[SAMPLES] * 2 * PROMPTS] * 2


def test_of_responses_alone_no_prompt_is_known():
    dump = made(LENGTHS, noise([]))
    columns = {k: v[:, WIDTH:] for k, v in dump.arrays().items() if v.ndim == 2}
    tokens = gather([Dump(**columns)])
    assert tokens.prompt is None and tokens.length is None
    assert gather([Dump(**columns, prompt_length=dump.prompt_length)]).length is not None


def test_weights_that_are_known_to_be_new_are_not_old():
    """Single tokens in every context: training; with versions, of an adapter."""
    dump = made(LENGTHS, noise([]))
    moved = np.random.default_rng(4).normal(0, 0.3, VOCABULARY)[dump.tokens[:, WIDTH:]]
    dump = made(LENGTHS, moved * np.random.default_rng(5).uniform(0.2, 1.8, moved.shape))
    assert diagnose([dump]).name == "old_weights"
    known = {"weights_version": np.full(ROWS, 7), "step": np.array(7)}
    assert diagnose([replace(dump, **known)]).name == "lora"


def test_old_weights_whose_age_makes_no_difference_are_not_the_cause():
    dump = made(LENGTHS, 0.02 * np.random.default_rng(7).normal(size=(ROWS, LENGTH)))
    known = {"weights_version": 4 - EVERY % 3, "step": np.array(5)}
    assert diagnose([replace(dump, **known)]).name == "precision"


def test_a_padded_softmax_goes_with_the_entropy_and_top_k_faster():
    """Shares of the mass in proportion to the entropy's root, and to its square."""
    dump = made(LENGTHS, noise([]))
    entropy = 10 ** np.random.default_rng(8).uniform(-2.5, 0.3, dump.mask.shape)
    for power, named in ((0.5, "vocabulary"), (2, "truncation")):
        sampler = np.minimum(dump.trainer_logprobs, -0.2)
        columns = {"sampler_logprobs": sampler, "entropy": entropy}
        trainer = sampler + np.log1p(-0.02 * entropy**power)
        assert diagnose([replace(dump, trainer_logprobs=trainer, **columns)]).name == named


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("entropy", [0.0, np.nan, np.inf])
def test_entropies_that_tell_nothing_are_not_asked(entropy):
    dump = made(LENGTHS, noise([]))
    sampler = np.minimum(dump.trainer_logprobs, -0.2)
    columns = {"sampler_logprobs": sampler, "trainer_logprobs": sampler - 0.02}
    verdict = diagnose([replace(dump, **columns, entropy=np.full(dump.mask.shape, entropy))])
    assert verdict.name == "truncation"


def test_top_p_is_no_matter_of_the_ids_that_are_off_most():
    """One sign everywhere, and a third of the ids by ten times more."""
    dump = made(LENGTHS, noise([]))
    tokens = dump.tokens[:, WIDTH:]
    sampler = dump.sampler_logprobs.copy()
    cut = np.where(tokens < VOCABULARY / 3, 0.05, 0.0005)
    sampler[:, WIDTH:] = np.minimum(sampler[:, WIDTH:] + cut, 0)
    verdict = diagnose(
        [replace(dump, sampler_logprobs=sampler, trainer_logprobs=dump.sampler_logprobs)]
    )
    assert verdict.name == "truncation"


def test_prompts_of_one_length_are_not_padded():
    """What begins as the first prompt does is no shorter for it."""
    dump = replace(made(np.full(PROMPTS, WIDTH), noise(EVERY[:SAMPLES])), prompt_length=None)
    assert np.ptp(gather([dump]).length) == 0
    assert diagnose([dump]).name == "stale_cache"


def test_where_all_responses_are_off_padding_says_nothing():
    verdict = diagnose([made(LENGTHS, 0.02 * np.random.default_rng(7).normal(size=(ROWS, LENGTH)))])
    assert "behind padding" not in verdict.tests["prefix"].found


def test_few_responses_are_not_two_populations():
    """Sixteen of one normal population part as well as two do in one draw of fourteen."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        change = 0.1 * 10 ** rng.normal(0, 0.3, (ROWS, 1)) * rng.normal(size=(ROWS, LENGTH))
        columns = {k: v[EVERY % 3 == 0] for k, v in made(LENGTHS, change, seed).arrays().items()}
        assert not picture(gather([Dump(**columns)])).two, seed


def test_a_few_tokens_agree_by_chance_with_their_neighbours():
    """Responses of four tokens, whose log-probs have nothing to do with each other."""
    dump = made(LENGTHS, noise([]))
    mask = dump.mask & (np.arange(WIDTH + LENGTH) < WIDTH + 5)
    trainer = np.random.default_rng(6).permutation(dump.trainer_logprobs, axis=0)
    verdict = diagnose([replace(dump, mask=mask, trainer_logprobs=trainer)])
    assert verdict.tests["shift"].found.startswith("in 0% of the responses")


def test_whatever_is_named_is_written_for_scripts():
    some = np.isin(EVERY // SAMPLES, [0, 3, 4, 7, 9, 10])
    far = np.full((ROWS, LENGTH), 8.0)
    for change in (noise(EVERY[some]), noise(EVERY), noise([]) + far):
        numbers = diagnose([made(LENGTHS, change)]).numbers()
        assert numbers["tests"] and json.loads(json.dumps(numbers)) == numbers

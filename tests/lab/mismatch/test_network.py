"""What the model gives under each change, against transformers row by row."""

from dataclasses import replace

import numpy as np
import peaked_llama as small
import pytest
import torch
from peaked_llama import Rollouts

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch import trial
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.hypotheses import computed, formats, layers, shown, weights
from nemo_algos.lab.mismatch.hypotheses.forward import Case
from nemo_algos.lab.mismatch.network import Lines, Network, recompute
from nemo_algos.lab.mismatch.responses import gather

MODEL = small.model()
OTHER = small.moved(MODEL)
ROLLOUTS = small.sampled(MODEL)
ZEROS = [torch.zeros(len(r)) for r in ROLLOUTS.responses]
RESPONSES = gather([from_arrays(ROLLOUTS.arrays(ZEROS, ZEROS))], 64)
OLD = {k: v.clone() for k, v in OTHER.state_dict().items()}
LONGEST = max(map(len, ROLLOUTS.prompts))


def case():
    some, sizes = RESPONSES.first(4), RESPONSES.micro_batches()
    tried = {"responses": some, "apart": np.ones(len(some.row)), "scale": np.ones(len(some.row))}
    about = {"longest": LONGEST, "micro_batches": sizes}
    return Case(Network(MODEL, None), {"old": OLD}, {}, **about, **tried)


def changes(hypothesis):
    """By its parameter; each attempt is said not to help."""
    found = []
    hypothesis(case(), lambda parameter, change: found.append((parameter, change)) or 1.0)
    return found


def change_of(hypothesis, **wanted):
    found = [c for p, c in changes(hypothesis) if wanted.items() <= p.items()]
    assert found, wanted
    return found[0]


def of_prompts(edit):
    """The rollouts behind other prompts."""
    return small.logits(MODEL, Rollouts([edit(p) for p in ROLLOUTS.prompts], ROLLOUTS.responses))


def with_config(**changed):
    other = small.model(**changed)
    other.load_state_dict(MODEL.state_dict())
    return small.logits(other, ROLLOUTS)


def with_weights(edit):
    other = small.model()
    state = {k: edit(k, v.clone()) for k, v in MODEL.state_dict().items()}
    other.load_state_dict(state)
    return small.logits(other, ROLLOUTS)


def positions_from(offset):
    found = []
    for p, r in zip(ROLLOUTS.prompts, ROLLOUTS.responses, strict=True):
        place = torch.arange(len(p) + len(r))
        place[len(p) :] += offset
        one = Rollouts([p], [r])
        found += small.logits(MODEL, one, position_ids=place[None])
    return found


def packed(size):
    found = []
    with torch.no_grad():
        for i in range(0, len(ROLLOUTS.prompts), size):
            pairs = zip(
                ROLLOUTS.prompts[i : i + size], ROLLOUTS.responses[i : i + size], strict=True
            )
            rows = [(torch.cat(pair), len(pair[0])) for pair in pairs]
            ids = torch.cat([row for row, _ in rows])
            place = torch.cat([torch.arange(len(row)) for row, _ in rows])
            mask = torch.full((len(ids), len(ids)), torch.finfo(torch.float32).min).triu(1)
            given = {"attention_mask": mask[None, None], "position_ids": place[None]}
            z, start = MODEL(input_ids=ids[None], **given).logits[0], 0
            for row, begin in rows:
                found.append(z[start + begin - 1 : start + len(row) - 1])
                start += len(row)
    return found


def windowed(size):
    found = []
    for p, r in zip(ROLLOUTS.prompts, ROLLOUTS.responses, strict=True):
        at = torch.arange(len(p) + len(r))
        seen = (at[:, None] >= at) & (at[:, None] - at < size)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        found += small.logits(MODEL, Rollouts([p], [r]), attention_mask=mask)
    return found


@torch.no_grad()
def cached():
    found = []
    for p, r in zip(ROLLOUTS.prompts, ROLLOUTS.responses, strict=True):
        past = OTHER(input_ids=p[None, :-1], use_cache=True).past_key_values
        found.append(
            MODEL(input_ids=torch.cat([p[-1:], r])[None], past_key_values=past).logits[0, :-1]
        )
    return found


@torch.no_grad()
def drawn_in_flight(prompt, places=6, length=18):
    """Drawn as `in_flight` scores; the prompt is the seed."""
    draws, ids, past = torch.Generator().manual_seed(int(prompt.sum())), prompt, None
    drawn = []
    while len(drawn) < length:
        model = OTHER if len(drawn) < places else MODEL
        read = model(input_ids=ids[None], past_key_values=past, use_cache=True)
        past = read.past_key_values
        ids = torch.multinomial(read.logits[0, -1].softmax(-1), 1, generator=draws)
        drawn.append(ids)
    return torch.cat(drawn)


@torch.no_grad()
def in_flight(rollouts=ROLLOUTS, places=6):
    """The first tokens by the old weights, whose cache the new ones go on with."""
    found = []
    for p, r in zip(rollouts.prompts, rollouts.responses, strict=True):
        read = OTHER(input_ids=torch.cat([p, r[: places - 1]])[None], use_cache=True)
        now = MODEL(input_ids=r[None, places - 1 :], past_key_values=read.past_key_values)
        found.append(torch.cat([read.logits[0, len(p) - 1 :], now.logits[0, :-1]]))
    return found


def pads(prompt):
    return torch.cat([torch.zeros(LONGEST - len(prompt), dtype=torch.long), prompt])


def int8(name, weight):
    if "_proj" not in name:
        return weight
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


CASES = {
    "as it is": (None, lambda: small.logits(MODEL, ROLLOUTS)),
    "BOS twice": (
        change_of(shown.template, variant="BOS more"),
        lambda: of_prompts(lambda p: torch.cat([torch.tensor([1]), p])),
    ),
    "no BOS": (change_of(shown.template, variant="no BOS"), lambda: of_prompts(lambda p: p[1:])),
    "cut": (change_of(shown.truncated, cut=2), lambda: of_prompts(lambda p: p[2:])),
    "pads": (
        change_of(shown.pads_attended, pad=0, micro_batch=1 << 20),
        lambda: of_prompts(pads),
    ),
    "positions": (change_of(shown.positions, offset=4), lambda: positions_from(4)),
    "packs": (change_of(shown.packing, responses=4, positions="own"), lambda: packed(4)),
    "window": (change_of(shown.sliding_window, window=8), lambda: windowed(8)),
    "rotary base": (
        change_of(computed.rope_base, theta=1e5),
        lambda: with_config(rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
    ),
    "rotary factor": (
        change_of(computed.rope_scaling, factor=2.0),
        lambda: with_config(
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
        ),
    ),
    "norms": (change_of(computed.norm_eps, eps=1e-2), lambda: with_config(rms_norm_eps=1e-2)),
    "int8": (
        change_of(formats.quantized_weights, format="int8 per channel"),
        lambda: with_weights(int8),
    ),
    "old": (change_of(weights.old_weights, folder="old"), lambda: small.logits(OTHER, ROLLOUTS)),
    "old MLPs": (
        change_of(weights.partial_weights, modules="mlp"),
        lambda: with_weights(lambda k, v: OLD[k] if ".mlp." in k else v),
    ),
    "old prefix": (change_of(weights.stale_prefix, folder="old", block=1), cached),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_gives_what_transformers_gives(name):
    change, oracle = CASES[name]
    z = oracle()
    found = recompute(case().network, RESPONSES, [change] if change else [])
    want = torch.cat(small.logprobs(z, ROLLOUTS)).numpy()
    plain = torch.cat(small.logprobs(small.logits(MODEL, ROLLOUTS), ROLLOUTS)).numpy()
    np.testing.assert_allclose(found.logprobs, want, atol=2e-4)
    if change:  # and it is another number than without
        assert np.abs(want - plain).mean() > 1e-3


def test_weights_that_change_in_flight_give_what_a_kept_cache_gives():
    """The place is found in what the sampler recorded."""
    want = small.logprobs(in_flight(), ROLLOUTS)
    some = gather([from_arrays(ROLLOUTS.arrays(want, ZEROS))], 64)
    found = recompute(case().network, some, [change_of(weights.in_flight, folder="old")])
    np.testing.assert_allclose(found.logprobs, torch.cat(want).numpy(), atol=2e-4)


@pytest.mark.parametrize("temperature, near", [(0.7, True), (1.0, False)])
def test_the_place_is_found_at_the_temperature_that_the_tokens_are_drawn_at(temperature, near):
    """Of a sampler at 0.7: at 1 another place fits better."""
    z, found = in_flight(), []
    recorded = small.logprobs([row / 0.7 for row in z], ROLLOUTS)
    some = gather([from_arrays(ROLLOUTS.arrays(recorded, ZEROS))], 64)
    at = replace(case(), temperature=temperature)
    weights.in_flight(at, lambda _, change: found.append(change) or 1.0)
    want = torch.cat(small.logprobs(z, ROLLOUTS)).numpy()
    got = recompute(at.network, some, found).logprobs
    assert bool((np.abs(got - want) < 2e-4).all()) == near


@pytest.mark.parametrize("slack", [trial.SLACK, 8.0])  # by 8 a cache computed anew fits too
def test_a_cache_that_is_kept_has_a_name_of_its_own(tmp_path, monkeypatch, slack):
    """Of a sampler whose weights change after six tokens of each response."""
    monkeypatch.setattr(trial, "SLACK", slack)
    rollouts = Rollouts(ROLLOUTS.prompts, [*map(drawn_in_flight, ROLLOUTS.prompts)])
    trainer = small.logprobs(small.logits(MODEL, rollouts), rollouts)
    dump = from_arrays(rollouts.arrays(small.logprobs(in_flight(rollouts), rollouts), trainer))
    now, old = small.saved(MODEL, tmp_path / "now"), small.saved(OTHER, tmp_path / "old")
    (cause,) = examine([dump], now, [old]).causes
    assert (cause.side, cause.name) == ("sampler", "old_weights")
    assert cause.parameter == {"folder": "old", "cache": "kept"}


def test_a_window_between_powers_of_two_is_found_by_its_first_token(tmp_path):
    """Most responses are hardly longer: the next lower power is worse than no window."""
    sampler, trainer = (
        small.logprobs(z, ROLLOUTS) for z in (small.logits(MODEL, ROLLOUTS), windowed(21))
    )
    dump = from_arrays(ROLLOUTS.arrays(sampler, trainer))
    (cause,) = examine([dump], small.saved(MODEL, tmp_path / "now")).causes
    assert (cause.side, cause.name) == ("trainer", "sliding_window")
    assert cause.parameter == {"window": 21}


def test_the_cache_ends_at_a_tokens_own_place():
    """Of a response with a token left out: the place before it and the places after."""
    lines = Lines(ROLLOUTS.prompts[0][None], None, None, [(0, torch.tensor([4, 5, 8, 9]))])
    assert [weights._lengths(lines, [n])[0] for n in range(6)] == [0, 5, 6, 9, 10, 10]


def test_rotary_frequencies_in_bfloat16():
    change = change_of(formats.precision, dtype="bfloat16 rotary frequencies")
    frequencies = MODEL.model.rotary_emb.inv_freq.clone()
    with change(case().network, _lines(), RESPONSES.each[:2]):
        assert torch.equal(MODEL.model.rotary_emb.inv_freq, frequencies.bfloat16().float())
    assert torch.equal(MODEL.model.rotary_emb.inv_freq, frequencies)


def test_the_model_is_as_it_was_afterwards():
    before = {k: v.clone() for k, v in MODEL.state_dict().items()}
    for module in (weights, computed, formats, layers, shown):
        for hypothesis in module.HYPOTHESES:
            for _, change in changes(hypothesis.attempt):
                with change(case().network, _lines(), RESPONSES.each[:2]):
                    pass
    for name, value in MODEL.state_dict().items():
        assert torch.equal(value, before[name]), name
    z = torch.cat(small.logprobs(small.logits(MODEL, ROLLOUTS), ROLLOUTS)).numpy()
    np.testing.assert_allclose(recompute(case().network, RESPONSES).logprobs, z, atol=2e-4)


def _lines():
    from nemo_algos.lab.mismatch.network import lines

    return lines(RESPONSES.each[:2])

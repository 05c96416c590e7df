"""What the model gives under each change, against transformers row by row."""

import numpy as np
import peaked_llama as small
import pytest
import torch
from peaked_llama import Rollouts

from nemo_algos.engines.local.hf import cache_name
from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.hypotheses import forward, weights
from nemo_algos.lab.mismatch.hypotheses.forward import Case
from nemo_algos.lab.mismatch.network import Network, recompute
from nemo_algos.lab.mismatch.responses import gather

MODEL = small.model()
OTHER = small.moved(MODEL)
ROLLOUTS = small.sampled(MODEL)
ZEROS = [torch.zeros(len(r)) for r in ROLLOUTS.responses]
RESPONSES = gather([from_arrays(ROLLOUTS.arrays(ZEROS, ZEROS))], 64)
OLD = {k: v.clone() for k, v in OTHER.state_dict().items()}
LONGEST = max(map(len, ROLLOUTS.prompts))


def case():
    about = {"longest": LONGEST, "micro_batches": RESPONSES.micro_batches()}
    return Case(Network(MODEL, None), {"old": OLD}, {}, **about)


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


@torch.no_grad()
def cached():
    found = []
    for p, r in zip(ROLLOUTS.prompts, ROLLOUTS.responses, strict=True):
        past = {cache_name(): OTHER(input_ids=p[None, :-1], use_cache=True)[cache_name()]}
        found.append(MODEL(input_ids=torch.cat([p[-1:], r])[None], **past).logits[0, :-1])
    return found


def pads(prompt):
    return torch.cat([torch.zeros(LONGEST - len(prompt), dtype=torch.long), prompt])


def int8(name, weight):
    if "_proj" not in name:
        return weight
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


def nvfp4(name, weight):
    """E2M1 times an E4M3 scale of 16 numbers, times a scale of the whole."""
    if "_proj" not in name:
        return weight
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    unit = weight.abs().max() / (6 * 448)
    blocks = weight.unflatten(1, (-1, 16))
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / unit).to(torch.float8_e4m3fn).float() * unit
    nearest = ((blocks / scale).abs()[..., None] - grid).abs().argmin(-1)
    return (grid[nearest] * blocks.sign() * scale).flatten(1)


CASES = {
    "as it is": (None, lambda: small.logits(MODEL, ROLLOUTS)),
    "BOS twice": (
        change_of(forward.template, variant="BOS more"),
        lambda: of_prompts(lambda p: torch.cat([torch.tensor([1]), p])),
    ),
    "no BOS": (change_of(forward.template, variant="no BOS"), lambda: of_prompts(lambda p: p[1:])),
    "cut": (change_of(forward.truncated, cut=2), lambda: of_prompts(lambda p: p[2:])),
    "pads": (
        change_of(forward.pads_attended, pad=0, micro_batch=1 << 20),
        lambda: of_prompts(pads),
    ),
    "positions": (change_of(forward.positions, offset=4), lambda: positions_from(4)),
    "rotary base": (
        change_of(forward.rope_base, theta=1e5),
        lambda: with_config(rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
    ),
    "rotary factor": (
        change_of(forward.rope_scaling, factor=2.0),
        lambda: with_config(
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
        ),
    ),
    "norms": (change_of(forward.norm_eps, eps=1e-2), lambda: with_config(rms_norm_eps=1e-2)),
    "nvfp4": (change_of(weights.quantized_weights, format="nvfp4"), lambda: with_weights(nvfp4)),
    "int8": (
        change_of(weights.quantized_weights, format="int8 per channel"),
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


def test_rotary_frequencies_in_bfloat16():
    change = change_of(weights.precision, dtype="bfloat16 rotary frequencies")
    frequencies = MODEL.model.rotary_emb.inv_freq.clone()
    with change(case().network, _lines(), RESPONSES.each[:2]):
        assert torch.equal(MODEL.model.rotary_emb.inv_freq, frequencies.bfloat16().float())
    assert torch.equal(MODEL.model.rotary_emb.inv_freq, frequencies)


def test_the_model_is_as_it_was_afterwards():
    before = {k: v.clone() for k, v in MODEL.state_dict().items()}
    for hypothesis in (*weights.HYPOTHESES, *forward.SHOWN, *forward.COMPUTED):
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

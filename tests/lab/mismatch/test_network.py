"""What the model gives under each change and in each family, against transformers row by row."""

import copy

import numpy as np
import peaked_llama as small
import pytest
import torch
import transformers as hf
from peaked_llama import Rollouts
from says import Says

from nemo_algos.engines.local.hf import cache_name
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.hypotheses import forward, weights
from nemo_algos.lab.mismatch.hypotheses.forward import Case
from nemo_algos.lab.mismatch.network import Network, lines, load, recompute
from nemo_algos.lab.mismatch.verdict import with_model

MODEL = small.model()
OTHER = small.moved(MODEL)
ROLLOUTS = small.sampled(MODEL)
RESPONSES = small.gathered(ROLLOUTS)
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


def without(edit):
    """The logits of a copy that lacks a part."""
    other = copy.deepcopy(MODEL)
    edit(other)
    return small.logits(other, ROLLOUTS)


def uniform(model):
    """Each token attends to all before it alike: queries are zeros."""
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.zero_()


def without_rotation(model):
    """Rotary embeddings of cosines 1 and sines 0."""
    made = lambda _, __, waves: (torch.ones_like(waves[0]), torch.zeros_like(waves[1]))  # noqa: E731
    model.model.rotary_emb.register_forward_hook(made)


def without_layer(model):
    model.model.layers = model.model.layers[:1]


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
    "no positions": (
        change_of(forward.rope_scaling, positions="none"),
        lambda: without(without_rotation),
    ),
    "uniform attention": (
        change_of(forward.attention_scale, scale=0.0),
        lambda: without(uniform),
    ),
    "no second layer": (
        change_of(weights.missing_part, part="layer 1"),
        lambda: without(without_layer),
    ),
    "norms": (change_of(forward.norm_eps, eps=1e-2), lambda: with_config(rms_norm_eps=1e-2)),
    "nvfp4": (change_of(weights.quantized_weights, format="nvfp4"), lambda: with_weights(nvfp4)),
    "int8": (
        change_of(weights.quantized_weights, format="int8 per channel"),
        lambda: small.logits(small.in_int8(MODEL, lambda name: "_proj" in name), ROLLOUTS),
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
    plain = torch.cat(small.values(MODEL, ROLLOUTS)).numpy()
    np.testing.assert_allclose(found.logprobs, want, atol=2e-4)
    if change:  # and it is another number than without
        assert np.abs(want - plain).mean() > 1e-3


def test_rotary_frequencies_in_bfloat16():
    change = change_of(weights.precision, dtype="bfloat16 rotary frequencies")
    frequencies = MODEL.model.rotary_emb.inv_freq.clone()
    with change(case().network, lines(RESPONSES.each[:2]), RESPONSES.each[:2]):
        assert torch.equal(MODEL.model.rotary_emb.inv_freq, frequencies.bfloat16().float())
    assert torch.equal(MODEL.model.rotary_emb.inv_freq, frequencies)


def test_the_model_is_as_it_was_afterwards():
    before = {k: v.clone() for k, v in MODEL.state_dict().items()}
    missing = forward.named(weights.missing_part)
    for hypothesis in (*weights.HYPOTHESES, *missing, *forward.SHOWN, *forward.COMPUTED):
        for _, change in changes(hypothesis.attempt):
            with change(case().network, lines(RESPONSES.each[:2]), RESPONSES.each[:2]):
                pass
    for name, value in MODEL.state_dict().items():
        assert torch.equal(value, before[name]), name
    z = torch.cat(small.values(MODEL, ROLLOUTS)).numpy()
    np.testing.assert_allclose(recompute(case().network, RESPONSES).logprobs, z, atol=2e-4)


RIGHT = {
    "Llama": {},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 4.0, "attention_multiplier": 0.2},
    "Gemma2": {"head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 5.0},
    "GPT2": {},
    "GPTNeoX": {},
    "Falcon": {},
}
REFUSED = ["Bloom", "Mamba"]


def made(family, tmp_path, **more):
    """A folder of random weights."""
    config = small.CONFIG | more
    if family != "Llama":
        config |= {"tie_word_embeddings": True}
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(getattr(hf, f"{family}Config")(**config)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 4
    return small.saved(model, tmp_path)


@pytest.mark.parametrize("family", RIGHT)
def test_a_family_gives_its_own_logits(family, tmp_path):
    folder = made(family, tmp_path, **RIGHT[family])
    network = load(folder)
    rollouts = small.sampled(small.model())
    own = small.values(network.model, rollouts)
    found = recompute(network, small.gathered(rollouts)).logprobs
    assert abs(found - torch.cat(own).numpy()).max() < 1e-3
    assert torch.cat(own).std() > 0.1


@pytest.mark.parametrize("family", REFUSED)
def test_another_family_is_refused_in_a_sentence(family, tmp_path):
    folder = made(family, tmp_path)
    rollouts = small.sampled(small.model())
    zeros = [torch.zeros(len(r)) for r in rollouts.responses]
    with pytest.raises(ValueError) as error:
        examine([small.dump(rollouts, zeros, zeros)], folder)
    assert str(error.value) == Says(str(folder)) and "\n" not in str(error.value)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
LAYERS = 3


def experts():
    torch.manual_seed(0)
    config = hf.Qwen3MoeConfig(**small.CONFIG | EXPERTS | {"num_hidden_layers": LAYERS})
    made = hf.Qwen3MoeForCausalLM(config).eval()
    with torch.no_grad():
        made.lm_head.weight *= 20
        for name, weight in made.named_parameters():
            if "experts" in name or name.endswith("gate.weight"):
                weight *= 8
    return made


@pytest.mark.long
def test_other_experts_at_some_tokens_have_no_name_but_a_sentence(tmp_path):
    made = experts()
    rollouts = small.sampled(made)
    draws = torch.Generator().manual_seed(1)

    def flipped(router, args, out):
        turned = torch.rand((), generator=draws) < 0.5
        return out[0], out[1], out[2].roll(1, 0) if turned else out[2]

    hooked = [layer.mlp.gate.register_forward_hook(flipped) for layer in made.model.layers]
    trainer = small.values(made, rollouts)
    for handle in hooked:
        handle.remove()
    dump = small.dump(rollouts, small.values(made, rollouts), trainer)
    found = examine([dump], small.saved(made, tmp_path / "model"))
    verdict = with_model([dump], found)
    assert found.causes == [] and verdict.verdict == "unknown"
    assert "holds no routes" in verdict.found


@pytest.mark.long
@pytest.mark.parametrize("left", [{}, {"experts": "left out"}])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn by it", "a draft's record"])
def test_int8_of_a_mixture_of_experts_keeps_the_router(tmp_path, left, drawn):
    """Where the model as it is drew the tokens, the record is not the sampler's own."""
    made = experts()
    coarse = small.in_int8(
        made, lambda name: ("experts" in name and not left) or name.endswith("_proj.weight")
    )
    rollouts = small.sampled(coarse if drawn else made)
    trainer, sampler = (small.values(m, rollouts) for m in (made, coarse))
    found = examine([small.dump(rollouts, sampler, trainer)], small.saved(made, tmp_path))
    names = [(c.side, c.name, c.parameter) for c in found.causes]
    format = {"format": "int8 per channel", **left}
    assert names == [("sampler", "quantized_weights", format)] * drawn
    assert found.unexplained == ["sampler"] * (not drawn)
    assert drawn or found.near("sampler")[0][0] == "speculative"


def test_int8_of_the_routers_too():
    made = experts()
    rollouts = small.sampled(made)
    coarse = small.in_int8(
        made, lambda name: "experts" in name or name.endswith(("gate.weight", "_proj.weight"))
    )
    want = small.values(coarse, rollouts)
    wanted, found = {"format": "int8 per channel", "router": "too"}, []
    attempt = lambda parameter, change: found.append((parameter, change)) or 1.0  # noqa: E731
    weights.quantized_weights(Case(Network(made, None)), attempt)
    (change,) = (change for parameter, change in found if parameter == wanted)
    got = recompute(Network(made, None), small.gathered(rollouts), [change]).logprobs
    np.testing.assert_allclose(got, torch.cat(want).numpy(), atol=2e-4)

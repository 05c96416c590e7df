"""Causes by experiment, end to end, on a small model; and what is not named."""

import copy
import functools
import json
from dataclasses import replace
from itertools import product

import numpy as np
import peaked_llama as small
import pytest
import torch
import transformers as hf
from matrix import some_of
from safetensors.torch import save_file

from nemo_algos.engines.dumps.dump import from_arrays
from nemo_algos.lab.mismatch import Cause
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.hypotheses.weights import lora
from nemo_algos.lab.mismatch.network import Network, in_bfloat16
from nemo_algos.lab.mismatch.verdict import with_model

MODEL = small.model()
OTHER = small.moved(MODEL)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("weights")
    return small.saved(MODEL, root / "now"), small.saved(OTHER, root / "v1")


def dump(sampler, trainer=MODEL, change=lambda z: z, seed=0, **more):
    """Of rollouts of the sampler's model, under a change of its logits."""
    rollouts = small.sampled(sampler, seed, change)
    own = small.values(sampler, rollouts, change)
    return small.dump(rollouts, own, small.values(trainer, rollouts), **more)


def names(examination):
    return [(cause.side, cause.name) for cause in examination.causes]


def test_one_model_is_clean(folders):
    found = examine([dump(MODEL)], folders[0])
    assert names(found) == [] and not found.unexplained


def of_ones(model):
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.fill_(1.0)


def without_biases(model):
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data.zero_()


def waves(edit):
    def change(model):
        model.model.rotary_emb.register_forward_hook(lambda _, __, both: edit(*both))

    return change


MISSING = {  # what the sampler lacks: how, and the cause with its parameter
    "norms": (of_ones, "missing_part", {"part": "norms"}),
    "biases": (without_biases, "missing_part", {"part": "biases"}),
    "the first layer": (lambda m: m.model.layers.__delitem__(0), "missing_part",
                        {"part": "layer 0"}),
    "the last layer": (lambda m: m.model.layers.__delitem__(1), "missing_part",
                       {"part": "layer 1"}),
    "rotary embeddings": (waves(lambda c, s: (torch.ones_like(c), torch.zeros_like(s))),
                          "rope_scaling", {"positions": "none"}),
    "rotary embeddings, and zeros are there": (waves(lambda c, s: (0 * c, 0 * s)),
                                               "attention_scale", {"scale": 0.0}),
}  # fmt: skip


@functools.cache
def whole_model():
    """With biases, and with norms that are not 1."""
    made = small.model(attention_bias=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name or "bias" in name:
                weight += 0.5 * torch.randn_like(weight)
    return made


@pytest.mark.parametrize("part", some_of(MISSING, 2))
def test_a_part_that_the_sampler_lacks_is_named(part, tmp_path):
    lack, cause, parameter = MISSING[part]
    sampler = copy.deepcopy(whole_model())
    lack(sampler)
    folder = small.saved(whole_model(), tmp_path / "now")
    (found,) = examine([dump(sampler, whole_model())], folder).causes
    assert (found.side, found.name, found.parameter) == ("sampler", cause, parameter)


def test_old_weights_at_another_temperature_are_two_causes(folders):
    found = examine([dump(OTHER, change=lambda z: z / 0.8)], folders[0], [folders[1]])
    assert sorted(names(found)) == [("sampler", "old_weights"), ("sampler", "temperature")]
    parameters = {cause.name: cause.parameter for cause in found.causes}
    assert parameters["temperature"]["temperature"] == pytest.approx(0.8, abs=0.01)
    assert parameters["old_weights"]["folder"] == "v1"


def test_weights_that_change_within_responses_are_unknown_and_have_a_place(folders):
    rollouts = small.sampled(OTHER)
    old, now = (small.values(m, rollouts) for m in (OTHER, MODEL))
    sampler = [torch.cat((a[:7], b[7:])) for a, b in zip(old, now, strict=True)]
    dumps = [small.dump(rollouts, sampler, now)]
    verdict = with_model(dumps, examine(dumps, folders[0], [folders[1]]))
    assert verdict.verdict == "unknown"
    (bucket,) = verdict.where
    assert (bucket.by, bucket.values) == ("place", "0 to 6") and bucket.share > 0.99


@pytest.mark.parametrize(
    "precision, seed, every", some_of(product(("float32", "bfloat16"), (0, 1), (1, 2, 4)), 2)
)
def test_old_weights_of_some_responses_are_nothing_else(folders, precision, seed, every):
    """Asynchronous rollouts without updates in flight: several hypotheses fit to rounding."""
    rollouts = small.sampled(OTHER, seed)
    trainer = small.values(MODEL, rollouts)
    made = [OTHER, MODEL]
    if precision == "bfloat16":
        made = [in_bfloat16(Network(m, None)).model for m in made]
    values = [small.values(m, rollouts) for m in made]
    sampler = [values[i % every != 0][i] for i in range(len(trainer))]
    found = examine([small.dump(rollouts, sampler, trainer)], folders[0], [folders[1]])
    assert [(c.side, c.name, c.parameter) for c in found.causes] == [
        ("sampler", "old_weights", {"folder": "v1"})
    ]
    assert not found.unexplained


@pytest.mark.long
def test_checkpoints_whose_folders_end_alike_are_both_tried(folders, tmp_path):
    other = small.saved(small.moved(MODEL, 0.2), tmp_path / "step_1" / "hf")
    right = small.saved(OTHER, tmp_path / "step_2" / "hf")
    for previous in ([other, right], [right, other]):
        (cause,) = examine([dump(OTHER)], folders[0], previous).causes
        assert cause.parameter["folder"] == str(right)


def of_bfloat16(seed):
    """Rollouts, and both sides' log-probs of one model, the sampler's in bf16."""
    return copy.deepcopy(_of_bfloat16(seed))


@functools.cache
def _of_bfloat16(seed):
    rollouts = small.sampled(MODEL, seed)
    made = in_bfloat16(Network(MODEL, None)).model
    return rollouts.arrays(small.values(made, rollouts), small.values(MODEL, rollouts))


def rare(a, share, value):
    """Values of a share of the tokens, at least of one."""
    draws = np.random.default_rng(2)
    rows, columns = np.nonzero(a["mask"])
    some = draws.choice(len(rows), max(1, round(share * len(rows))), replace=False)
    a["sampler_logprobs"][rows[some], columns[some]] += value(draws, len(some))
    np.minimum(a["sampler_logprobs"], 0, out=a["sampler_logprobs"])
    return len(some)


def garbled(a):
    there = a["mask"][9]
    a["sampler_logprobs"][9, there] = -12 * np.random.default_rng(1).random(there.sum())
    return 0.8 * there.sum()


def forced(a):
    """Each response's fourth token."""
    rows = np.arange(len(a["mask"]))
    a["sampler_logprobs"][rows, a["mask"].argmax(1) + 3] = 0
    return 0.5 * len(rows)


RARE = {
    "one token": lambda a: rare(a, 0.0, lambda draws, n: -8.0),
    "2 % spikes": lambda a: rare(a, 0.02, lambda draws, n: -draws.uniform(5, 15, n)),
    "1 % zeros": lambda a: rare(a, 0.01, lambda draws, n: 100.0) * 0.5,
    "a garbled response": garbled,
    "a forced token": forced,
}


@pytest.mark.parametrize("plant", some_of(RARE, 2))
def test_rare_large_errors_are_not_rounding(folders, plant):
    arrays = of_bfloat16(0)
    least = RARE[plant](arrays)
    found = examine([from_arrays(arrays)], folders[0], [folders[1]])
    verdict = with_model([from_arrays(arrays)], found)
    assert (verdict.verdict, found.unexplained) == ("unknown", ["sampler"])
    assert all(share < 0.5 for _, share in found.near("sampler"))  # what explains the right ones
    count, furthest = found.sides["sampler"].far
    assert least <= count <= arrays["mask"].sum() / 10
    assert furthest > 2 and str(count) in verdict.found


def stale_rows(a):
    """A rank whose few rows another model sampled."""
    rollouts = small.sampled(MODEL, 1)
    for i in (5, 6, 7):
        there = a["mask"][i]
        a["sampler_logprobs"][i, there] = small.values(OTHER, rollouts)[i]


OUTSIDE = {
    "a garbled response": garbled,
    "one token": RARE["one token"],
    "2 % spikes": RARE["2 % spikes"],
    "a forced token": forced,
    "stale rows": stale_rows,
}


@pytest.mark.parametrize("plant", some_of([*OUTSIDE, None], 3))
def test_what_is_not_recomputed_is_in_the_verdict(folders, plant):
    """Of 96 responses 8 are recomputed."""
    arrays = [of_bfloat16(seed) for seed in range(3)]
    if plant:
        OUTSIDE[plant](arrays[1])
    dumps = [from_arrays(a) for a in arrays]
    verdict = with_model(dumps, examine(dumps, folders[0], count=8))
    assert verdict.verdict == ("unknown" if plant else "clean")
    assert (32 <= verdict.worst[0]["response"] < 64) or not plant


def test_a_change_of_both_sides_is_the_runs_own(folders):
    rollouts = small.sampled(MODEL, 0, lambda z: z / 0.7)
    values = small.values(MODEL, rollouts, lambda z: z / 0.7)
    assert names(examine([small.dump(rollouts, values, values)], folders[0])) == []


def kept(keep):
    """A filter: keep(probabilities in order) says which stay."""

    def change(z):
        p, order = z.softmax(-1).sort(-1, descending=True)
        return z.masked_fill(~keep(p).gather(-1, order.argsort(-1)), -torch.inf)

    return change


SHARED = {
    "top_p 0.9": kept(lambda p: p.cumsum(-1) - p < 0.9),
    "top_p 0.7": kept(lambda p: p.cumsum(-1) - p < 0.7),
    "top_k 5": kept(lambda p: torch.arange(p.shape[-1]).expand_as(p) < 5),
    "temperature 0.15": lambda z: z / 0.15,
    "temperature 0.25": lambda z: z / 0.25,
    "temperature 3.5": lambda z: z / 3.5,
}


@pytest.mark.parametrize("dropped", some_of([-np.inf, 0.0], 1))  # NeMo-RL writes 0
@pytest.mark.parametrize("shared", some_of([*SHARED], 2))
def test_what_both_sides_do_alike_is_no_mismatch(folders, shared, dropped):
    """At a filter's edge rounding decides, and the trainer may drop a token that was drawn."""
    change = SHARED[shared]
    made = in_bfloat16(Network(MODEL, None)).model
    rollouts = small.sampled(made, 0, lambda z: change(z.float()))
    sampler, trainer = (small.values(m, rollouts, change) for m in (made, MODEL))
    trainer = [row.nan_to_num(neginf=dropped) for row in trainer]
    dumps = [small.dump(rollouts, sampler, trainer)]
    verdict = with_model(dumps, examine(dumps, folders[0], [folders[1]]))
    assert verdict.verdict == "clean" and shared in verdict.found


SCALINGS = [
    ("linear", 4.0, None),
    ("yarn", 4.0, 64),
    ("yarn", 4.0, 16),
    ("llama3", 4.0, 16),
    ("llama3", 8.0, 32),  # other bases do nearly the same to these few frequencies
    ("llama3", 8.0, 16),
    ("llama3", 4.0, 32),
    ("llama3", 8.0, 64),
]


@pytest.mark.parametrize("kind, factor, length", some_of(SCALINGS, 2))
@pytest.mark.parametrize("side", some_of(["trainer", "sampler"], 1))
def test_a_rotary_scaling_of_one_side_alone_is_named(tmp_path, side, kind, factor, length):
    plain = small.model(max_position_embeddings=64)
    rope = plain.config.rope_parameters | {"rope_type": kind, "factor": factor}
    if length:
        rope["original_max_position_embeddings"] = length
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = small.model(max_position_embeddings=64, rope_parameters=rope)
    sampler, trainer = (scaled, plain) if side == "sampler" else (plain, scaled)
    found = examine([dump(sampler, trainer=trainer)], small.saved(plain, tmp_path))
    (cause,) = found.causes
    assert (cause.side, cause.name) == (side, "rope_scaling")
    assert (cause.parameter["rope_type"], cause.parameter["factor"]) == (kind, factor)
    if kind == "llama3":  # YaRN of 16 and 32 is the same here
        assert cause.parameter["original_max_position_embeddings"] == length


def test_greedy_tokens_of_which_some_are_ties_have_no_temperature(folders):
    rollouts = small.sampled(MODEL, 0, lambda z: z * 1e4)
    trainer = small.values(MODEL, rollouts)
    sampler = [torch.zeros(len(r)) for r in rollouts.responses]
    for i in range(13):  # 26 of 544
        sampler[i][3:5] = -np.log(2)
    assert names(examine([small.dump(rollouts, sampler, trainer)], folders[0])) == [
        ("sampler", "greedy")
    ]


@pytest.mark.long
def test_what_no_hypothesis_explains_has_no_name(folders):
    arrays = dump(MODEL).arrays()
    noise = 0.3 * np.random.default_rng(0).normal(size=arrays["tokens"].shape)
    arrays["sampler_logprobs"] = np.minimum(arrays["sampler_logprobs"] + noise, 0)
    found = examine([from_arrays(arrays)], folders[0], [folders[1]])
    assert names(found) == [] and found.unexplained == ["sampler"]
    assert with_model([from_arrays(arrays)], found).verdict == "unknown"


@pytest.mark.long
def test_what_the_numbers_alone_prove_stands_where_the_model_explains_nothing(folders):
    """Of exchanged responses those of four tokens are not recognized one by one."""
    rollouts = small.sampled(MODEL)
    for i in range(0, 32, 5):
        rollouts.responses[i] = rollouts.responses[i][:4]
    sampler = small.values(MODEL, rollouts)
    arrays = rollouts.arrays(sampler, sampler)
    order = np.roll(np.arange(32), 5)
    arrays["trainer_logprobs"] = arrays["trainer_logprobs"][order] * arrays["mask"]
    found = examine([from_arrays(arrays)], folders[0])
    verdict = with_model([from_arrays(arrays)], found)
    assert found.unexplained == ["trainer"] and verdict.verdict == "rows"
    assert verdict.causes[0].side == "trainer"


@pytest.mark.long
def test_other_weights_than_the_trainers_are_refused(folders):
    with pytest.raises(ValueError, match="--model"):
        examine([dump(OTHER, trainer=OTHER)], folders[0])


def test_a_checkpoint_of_another_model_is_refused(folders, tmp_path):
    config = MODEL.config.__class__(**{**small.CONFIG, "num_hidden_layers": 1})
    other = small.saved(MODEL.__class__(config), tmp_path / "other")
    with pytest.raises(ValueError, match="other"):
        examine([dump(MODEL)], folders[0], [other])
    with pytest.raises(ValueError, match="nowhere"):
        examine([dump(MODEL)], tmp_path / "nowhere")


def test_prompts_are_needed(folders):
    arrays = dump(MODEL).arrays()
    width = arrays["prompt_length"].max()
    cut = {k: v[:, width:] for k, v in arrays.items() if v.ndim == 2}
    with pytest.raises(ValueError, match="prompts"):
        examine([from_arrays(cut)], folders[0])


@pytest.mark.parametrize(
    "scale, name", some_of([(0.0, "adapter_missing"), (2.0, "adapter_twice")], 1)
)
def test_an_adapter_that_the_sampler_lacks_or_has_twice(folders, tmp_path, scale, name):
    torch.manual_seed(3)
    files, added = {}, {}
    for layer in range(2):
        module = f"model.layers.{layer}.self_attn.q_proj"
        weight = MODEL.get_submodule(module).weight
        a, b = torch.randn(4, weight.shape[1]), torch.randn(weight.shape[0], 4)
        files[f"base_model.model.{module}.lora_A.weight"] = a
        files[f"base_model.model.{module}.lora_B.weight"] = b * 0.03
        added[f"{module}.weight"] = 2 * 0.03 * b @ a
    save_file(files, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))

    def adapted(times):
        other = small.model()
        state = MODEL.state_dict()
        other.load_state_dict({k: v + times * added.get(k, 0) for k, v in state.items()})
        return other

    of = dump(adapted(scale), trainer=adapted(1.0))
    assert names(examine([of], folders[0], adapter=tmp_path)) == [("sampler", name)]


A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
MODULE = A.removesuffix("lora_A.weight")
RIGHT = {A: torch.ones(4, 32), f"{MODULE}lora_B.weight": torch.ones(32, 4)}
SETTINGS = {"r": 4, "lora_alpha": 8}


@pytest.mark.parametrize(
    "tensors, settings",
    [
        ({A: RIGHT[A]}, "{}"),
        ({**RIGHT, A: torch.ones(32)}, "{}"),
        ({**RIGHT, f"{MODULE}lora_B.weight": torch.ones(())}, "{}"),
        ({**RIGHT, A: torch.ones(3, 32)}, "{}"),
        ({**RIGHT, A: torch.ones(4, 31)}, "{}"),
        ({**RIGHT, A: RIGHT[A] * torch.nan}, "{}"),
        ({"x": torch.ones(2)}, "{}"),
        (RIGHT, '{"r": 0}'),
        (RIGHT, '{"r": -4, "use_rslora": true}'),
        (RIGHT, '{"r": 1e400}'),
        (RIGHT, f'{{"r": {10**400}}}'),
        (RIGHT, f'{{"lora_alpha": {10**400}}}'),
        (RIGHT, '{"lora_alpha": NaN}'),
        (RIGHT, '{"lora_alpha": null}'),
        (RIGHT, '{"r": "four"}'),
        (RIGHT, "[]"),
        (RIGHT, "{"),
    ],
)
def test_an_adapter_that_is_none_is_refused_in_a_sentence(tmp_path, tensors, settings):
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    own = settings[1:-1] if settings != "{}" else ""
    keys = ", ".join(f'"{k}": {v}' for k, v in SETTINGS.items() if f'"{k}"' not in own)
    text = f"{{{keys}{', ' if own else ''}{own}}}" if settings[-1] == "}" else settings
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ValueError) as error:
        lora(tmp_path, Network(MODEL, None))
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", some_of([0.6, 1.0], 1))
def test_log_probs_recorded_before_the_trainers_temperature_have_its_value(folders, temperature):
    """The engine returns raw log-probs, the trainer divides its logits or does not."""
    rollouts = small.sampled(MODEL, 0, lambda z: z / 0.6)
    raw = small.values(MODEL, rollouts)
    trainer = small.values(MODEL, rollouts, lambda z: z / temperature)
    found = examine([small.dump(rollouts, raw, trainer)], folders[0])
    (cause,) = found.causes
    assert (cause.side, cause.name) == ("sampler", "recorded_before")
    assert [*cause.parameter] == ["temperature"]
    near = 1e-3 if temperature == 0.6 else 0.08
    assert cause.parameter["temperature"] == pytest.approx(0.6, abs=near)


def test_log_probs_that_are_divided_by_a_temperature_have_one_factor(folders):
    arrays = of_bfloat16(0)
    arrays["sampler_logprobs"] /= 0.6
    (cause,) = examine([from_arrays(arrays)], folders[0]).causes
    assert (cause.side, cause.name) == ("sampler", "log_factor")
    assert cause.parameter["factor"] == pytest.approx(1 / 0.6, rel=0.01)


@pytest.mark.parametrize("seed", some_of(range(4), 1))
def test_a_model_that_is_nearly_uniform_has_no_cause(tmp_path, seed):
    """Random weights over 2,048 ids, of which 256 logits are kept."""
    made = hf.LlamaForCausalLM(hf.LlamaConfig(**small.CONFIG | {"vocab_size": 2048})).eval()
    rollouts = small.drawn(made, seed, lambda z: z)
    coarse = in_bfloat16(Network(made, None)).model
    dumps = [small.dump(rollouts, small.values(coarse, rollouts), small.values(made, rollouts))]
    found = examine(dumps, small.saved(made, tmp_path))
    assert with_model(dumps, found).causes == []


def test_rounding_has_no_cause_and_a_small_one_of_less_than_half_is_not_named(folders):
    dumps = [from_arrays(of_bfloat16(0))]
    found = examine(dumps, folders[0])
    assert names(found) == [] and not found.unexplained
    for share, named in ((0.4, []), (0.6, ["norm_eps"])):
        causes = [Cause("norm_eps", "sampler", {"eps": 1e-3}, share)]
        verdict = with_model(dumps, replace(found, causes=causes))
        assert [cause.name for cause in verdict.causes] == named
        assert verdict.verdict == (named or ["clean"])[0]

"""Causes by experiment, end to end, on a small model; and what is not named."""

import json

import numpy as np
import peaked_llama as small
import pytest
import torch
from safetensors.torch import save_file

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.examination import examine
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
    own = [change(z) for z in small.logits(sampler, rollouts)]
    arrays = rollouts.arrays(
        small.logprobs(own, rollouts),
        small.logprobs(small.logits(trainer, rollouts), rollouts),
        **more,
    )
    return from_arrays(arrays)


def names(examination):
    return [(cause.side, cause.name) for cause in examination.causes]


def test_one_model_is_clean(folders):
    found = examine([dump(MODEL)], folders[0])
    assert names(found) == [] and not found.unexplained


def test_old_weights_at_another_temperature_are_two_causes(folders):
    found = examine([dump(OTHER, change=lambda z: z / 0.8)], folders[0], [folders[1]])
    assert sorted(names(found)) == [("sampler", "old_weights"), ("sampler", "temperature")]
    parameters = {cause.name: cause.parameter for cause in found.causes}
    assert parameters["temperature"]["temperature"] == pytest.approx(0.8, abs=0.01)
    assert parameters["old_weights"]["folder"] == "v1"


def test_weights_that_change_within_responses_have_a_place(folders):
    """A third of the way through each: the engine computes its cache anew, and goes on."""
    rollouts = small.sampled(OTHER)
    old, now = (small.logprobs(small.logits(m, rollouts), rollouts) for m in (OTHER, MODEL))
    sampler = [torch.cat((a[:7], b[7:])) for a, b in zip(old, now, strict=True)]
    (cause,) = examine(
        [from_arrays(rollouts.arrays(sampler, now))], folders[0], [folders[1]]
    ).causes
    assert (cause.name, cause.parameter["folder"]) == ("old_weights", "v1")
    assert cause.parameter["until_token"] == pytest.approx(7, abs=1)


def test_old_weights_of_some_responses_have_none(folders):
    rollouts = small.sampled(OTHER)
    old, now = (small.logprobs(small.logits(m, rollouts), rollouts) for m in (OTHER, MODEL))
    sampler = [(old, now)[i % 2][i] for i in range(len(old))]
    (cause,) = examine(
        [from_arrays(rollouts.arrays(sampler, now))], folders[0], [folders[1]]
    ).causes
    assert (cause.name, cause.parameter) == ("old_weights", {"folder": "v1"})


@pytest.mark.long
def test_checkpoints_whose_folders_end_alike_are_both_tried(folders, tmp_path):
    other = small.saved(small.moved(MODEL, 0.2), tmp_path / "step_1" / "hf")
    right = small.saved(OTHER, tmp_path / "step_2" / "hf")
    for previous in ([other, right], [right, other]):
        (cause,) = examine([dump(OTHER)], folders[0], previous).causes
        assert cause.parameter["folder"] == str(right)


def test_a_change_of_both_sides_is_the_runs_own(folders):
    rollouts = small.sampled(MODEL, 0, lambda z: z / 0.7)
    values = small.logprobs([z / 0.7 for z in small.logits(MODEL, rollouts)], rollouts)
    assert names(examine([from_arrays(rollouts.arrays(values, values))], folders[0])) == []


def test_greedy_tokens_of_which_some_are_ties_have_no_temperature(folders):
    rollouts = small.sampled(MODEL, 0, lambda z: z * 1e4)
    trainer = small.logprobs(small.logits(MODEL, rollouts), rollouts)
    sampler = [torch.zeros(len(r)) for r in rollouts.responses]
    for i in range(13):  # 26 of 544
        sampler[i][3:5] = -np.log(2)
    assert names(examine([from_arrays(rollouts.arrays(sampler, trainer))], folders[0])) == [
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
def test_what_explains_a_part_is_a_candidate(folders):
    arrays = dump(MODEL, change=lambda z: z / 0.6).arrays()
    noise = 0.1 * np.random.default_rng(0).normal(size=arrays["tokens"].shape)
    arrays["sampler_logprobs"] = np.minimum(arrays["sampler_logprobs"] + noise, 0)
    found = examine([from_arrays(arrays)], folders[0])
    assert names(found) == [] and found.near("sampler")[0][0] == "temperature"


@pytest.mark.long
def test_what_the_numbers_alone_prove_stands_where_the_model_explains_nothing(folders):
    """Of exchanged responses those of four tokens are not recognized one by one."""
    rollouts = small.sampled(MODEL)
    for i in range(0, 32, 5):
        rollouts.responses[i] = rollouts.responses[i][:4]
    sampler = small.logprobs(small.logits(MODEL, rollouts), rollouts)
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


@pytest.mark.parametrize("scale, name", [(0.0, "adapter_missing"), (2.0, "adapter_twice")])
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

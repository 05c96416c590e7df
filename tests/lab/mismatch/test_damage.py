"""A damaged module of one layer is named with its layer; two are not one."""

import peaked_llama as small
import pytest
import torch
from matrix import some_of

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.examination import examine

MODEL = small.model()
ROLLOUTS = small.sampled(MODEL)


def logprobs(made, rollouts):
    return small.logprobs(small.logits(made, rollouts), rollouts)


def causes(tmp_path, made, rollouts, other, side):
    """Of a dump in which this side is another one."""
    right = logprobs(made, rollouts)
    pair = (other, right) if side == "sampler" else (right, other)
    found = examine([from_arrays(rollouts.arrays(*pair))], small.saved(made, tmp_path / "now"))
    return [(c.side, c.name, c.parameter) for c in found.causes]


@pytest.mark.parametrize(
    "layer, module, change, more",
    some_of(
        [
            (1, "self_attn.o_proj", lambda w: w * 1.5, {"scale": 1.5}),
            (1, "mlp.gate_proj", lambda w: w.roll(len(w) // 2, 0), {"halves": "exchanged"}),
            (0, "self_attn.o_proj", lambda w: w.roll(len(w) // 2, 0), {"halves": "exchanged"}),
        ],
        1,
    ),
)
def test_a_damaged_module_is_named_with_its_layer(tmp_path, layer, module, change, more):
    other = small.model()
    with torch.no_grad():
        weight = other.model.layers[layer].get_parameter(f"{module}.weight")
        weight.copy_(change(weight))
    rollouts = small.sampled(other)
    found = causes(tmp_path, MODEL, rollouts, logprobs(other, rollouts), "sampler")
    ((side, name, parameter),) = found
    assert (side, name, parameter["layer"]) == ("sampler", "bad_layer", layer)
    assert module.rpartition(".")[2] in parameter["module"]
    if "scale" in more:
        assert parameter["scale"] == pytest.approx(more["scale"], abs=0.05)


@pytest.mark.parametrize("scale, named", [(1.1, ["bad_layer"]), (1.02, [])])
def test_a_small_scale_has_a_name_where_it_is_4_times_bfloat16s_rounding(tmp_path, scale, named):
    other = small.model()
    with torch.no_grad():
        other.model.layers[1].self_attn.o_proj.weight.mul_(scale)
    other = other.bfloat16()
    rollouts = small.drawn(other, 0, lambda z: z.float())
    own = small.logprobs([z.float() for z in small.logits(other, rollouts)], rollouts)
    found = causes(tmp_path, MODEL, rollouts, own, "sampler")
    assert [name for _, name, _ in found] == named
    assert all(p["layer"] == 1 and abs(p["scale"] - scale) < 0.03 for *_, p in found)


@pytest.mark.long
def test_two_damaged_layers_are_not_one(tmp_path):
    other = small.moved(MODEL, 0.3)
    assert causes(tmp_path, MODEL, ROLLOUTS, logprobs(other, ROLLOUTS), "sampler") == []

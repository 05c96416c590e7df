"""A module of one layer, dropout and experts: planted, and unnamed where they are not the cause."""

from contextlib import ExitStack, contextmanager

import peaked_llama as small
import pytest
import torch
import transformers as hf
from torch.nn.functional import dropout

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.hypotheses.chance import ranks_off

MODEL = small.model()
ROLLOUTS = small.sampled(MODEL)


def experts():
    torch.manual_seed(0)
    more = {"head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    made = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**small.CONFIG, **more)).eval()
    with torch.no_grad():
        made.lm_head.weight *= 20
        for name, weight in made.named_parameters():
            if "proj" in name or "experts" in name or "gate" in name:
                weight *= 8
    return made


MOE = experts()
ROUTED = small.sampled(MOE)


def logprobs(made, rollouts):
    return small.logprobs(small.logits(made, rollouts), rollouts)


def causes(tmp_path, made, rollouts, other, side):
    """Of a dump in which this side is another one."""
    right = logprobs(made, rollouts)
    pair = (other, right) if side == "sampler" else (right, other)
    found = examine([from_arrays(rollouts.arrays(*pair))], small.saved(made, tmp_path / "now"))
    return [(c.side, c.name, c.parameter) for c in found.causes]


@contextmanager
def outputs(made, ending, change):
    with ExitStack() as stack:
        for name, module in made.named_modules():
            if name.endswith(ending):
                hook = module.register_forward_hook(lambda _, __, out: change(out))
                stack.callback(hook.remove)
        yield


@pytest.mark.parametrize(
    "layer, module, change, more",
    [
        (1, "self_attn.o_proj", lambda w: w * 1.5, {"scale": 1.5}),
        (0, "self_attn.v_proj", lambda w: w * 0, {"scale": 0.0}),
        (1, "mlp.gate_proj", lambda w: w.roll(len(w) // 2, 0), {"halves": "exchanged"}),
    ],
)
def test_a_damaged_module_is_named_with_its_layer(tmp_path, layer, module, change, more):
    other = small.model()
    with torch.no_grad():
        weight = other.model.layers[layer].get_parameter(f"{module}.weight")
        weight.copy_(change(weight))
    found = causes(tmp_path, MODEL, ROLLOUTS, logprobs(other, ROLLOUTS), "sampler")
    ((side, name, parameter),) = found
    assert (side, name, parameter["layer"]) == ("sampler", "bad_layer", layer)
    assert module.rpartition(".")[2] in parameter["module"]
    if "scale" in more:
        assert parameter["scale"] == pytest.approx(more["scale"], abs=0.05)


def test_two_damaged_layers_are_not_one(tmp_path):
    other = small.moved(MODEL, 0.3)
    assert causes(tmp_path, MODEL, ROLLOUTS, logprobs(other, ROLLOUTS), "sampler") == []


@pytest.mark.parametrize("side", ["trainer", "sampler"])
def test_dropout_of_the_trainer_is_named(tmp_path, side):
    """A sampler whose responses have weights of several steps looks the same."""
    torch.manual_seed(5)
    with outputs(MODEL, ".mlp", lambda out: dropout(out, 0.1)):
        other = logprobs(MODEL, ROLLOUTS)
    found = causes(tmp_path, MODEL, ROLLOUTS, other, side)
    if side == "sampler":
        assert found == []
    else:
        ((_, name, parameter),) = found
        assert name == "dropout" and 0.02 < parameter["rate"] < 0.2


def test_a_trainer_with_other_weights_is_not_random(tmp_path):
    """They err alike where the ids are equal."""
    found = causes(
        tmp_path, MODEL, ROLLOUTS, logprobs(small.moved(MODEL, 0.2), ROLLOUTS), "trainer"
    )
    assert found == []


def rerouted(made, rollouts, tokens):
    """Row by row: each token with the experts that one so many before has in a pass of its own."""
    found = []
    for p, r in zip(rollouts.prompts, rollouts.responses, strict=True):
        one, own = small.Rollouts([p], [r]), []
        with outputs(made, "mlp.gate", lambda out, own=own: own.append(out[2]) or out):
            small.logits(made, one)
        moved = iter([torch.cat([x[:tokens], x[:-tokens]]) for x in own])

        def late(out, moved=moved):
            chosen = next(moved)
            taken = out[0].softmax(-1).gather(1, chosen)
            return out[0], taken / taken.sum(-1, keepdim=True) if NORM else taken, chosen

        with outputs(made, "mlp.gate", late):
            found += logprobs(made, one)
    return found


NORM = MOE.config.norm_topk_prob


@pytest.mark.parametrize("tokens", [1, 2])
def test_experts_that_are_replayed_late_are_named(tmp_path, tokens):
    ((side, name, parameter),) = causes(
        tmp_path, MOE, ROUTED, rerouted(MOE, ROUTED, tokens), "trainer"
    )
    assert (side, name) == ("trainer", "routes")
    assert parameter == {"tokens": tokens, "layers": 0}


def test_a_model_with_experts_is_clean(tmp_path):
    assert causes(tmp_path, MOE, ROUTED, logprobs(MOE, ROUTED), "trainer") == []


def test_ranks_of_draws_are_even_and_of_others_not():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(8, 4000, generator=generator).numpy()
    assert ranks_off(draws[0], draws[1:]) < 0.04 < 0.08 < ranks_off(2 * draws[0], draws[1:])

"""Experts (their routes, INT8) and dropout in the trainer, against transformers' own forward."""

import numpy as np
import peaked_llama as small
import pytest
import torch
import transformers as hf

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.hypotheses import formats
from nemo_algos.lab.mismatch.hypotheses.forward import Case
from nemo_algos.lab.mismatch.network import Network, recompute
from nemo_algos.lab.mismatch.responses import gather
from nemo_algos.lab.mismatch.verdict import with_model

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


def replayed(made, rollouts, place):
    """Log-probs, with the routes of place(layer, token) of a first forward in another one."""
    return [
        _replayed(made, small.Rollouts([p], [r]), place)
        for p, r in zip(rollouts.prompts, rollouts.responses, strict=True)
    ]


def _replayed(made, row, place):
    routes = {}

    def keep(layer):
        return lambda _, __, out: routes.update({layer: out[2]})

    def other(layer):
        def hook(_, __, out):
            at = [place(layer, token) for token in range(len(out[2]))]
            picked = torch.stack([routes[i][token] for i, token in at])
            taken = out[0].softmax(-1).gather(1, picked)
            normed = taken / taken.sum(1, keepdim=True)
            return out[0], normed if made.config.norm_topk_prob else taken, picked

        return hook

    for hook in (keep, other):
        gates = [layer.mlp.gate for layer in made.model.layers]
        hooked = [gate.register_forward_hook(hook(i)) for i, gate in enumerate(gates)]
        (values,) = small.logprobs(small.logits(made, row), row)
        for handle in hooked:
            handle.remove()
    return values


def found_of(tmp_path, made, rollouts, trainer):
    sampler = small.logprobs(small.logits(made, rollouts), rollouts)
    dump = from_arrays(rollouts.arrays(sampler, trainer))
    found = examine([dump], small.saved(made, tmp_path / "model"))
    return [(c.side, c.name, c.parameter) for c in found.causes], with_model([dump], found)


@pytest.mark.parametrize(
    "of, place",
    [
        ("tokens", lambda layer, token: (layer, max(token - 1, 0))),
        ("layers", lambda layer, token: ((layer - 1) % LAYERS, token)),
    ],
)
def test_routes_of_the_token_or_layer_before_are_named(tmp_path, of, place):
    made = experts()
    rollouts = small.sampled(made)
    causes, _ = found_of(tmp_path, made, rollouts, replayed(made, rollouts, place))
    assert causes == [("trainer", "routes", {"offset": 1, "of": of})]


@pytest.mark.long
def test_routes_that_differ_have_no_name_but_a_sentence(tmp_path):
    made = experts()
    rollouts = small.sampled(made)
    draws = torch.Generator().manual_seed(1)
    near = lambda layer, token: (layer, max(token - int(torch.randint(3, (), generator=draws)), 0))  # noqa: E731
    causes, verdict = found_of(tmp_path, made, rollouts, replayed(made, rollouts, near))
    assert causes == [] and verdict.verdict == "unknown"
    assert "holds no routes" in verdict.found


@pytest.mark.long
@pytest.mark.parametrize("left", [{}, {"experts": "left out"}])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn by it", "a draft's record"])
def test_int8_of_a_mixture_of_experts_keeps_the_router(tmp_path, left, drawn):
    """Where the model as it is drew the tokens, the record is not the sampler's own."""
    made, coarse = experts(), experts()
    with torch.no_grad():
        for name, weight in coarse.named_parameters():
            if ("experts" in name and not left) or name.endswith("_proj.weight"):
                scale = weight.abs().amax(-1, keepdim=True) / 127
                weight.copy_((weight / scale).round() * scale)
    rollouts = small.sampled(coarse if drawn else made)
    trainer, sampler = (small.logprobs(small.logits(m, rollouts), rollouts) for m in (made, coarse))
    found = examine([from_arrays(rollouts.arrays(sampler, trainer))], small.saved(made, tmp_path))
    names = [(c.side, c.name, c.parameter) for c in found.causes]
    format = {"format": "int8 per channel", **left}
    assert names == [("sampler", "quantized_weights", format)] * drawn
    assert found.unexplained == ["sampler"] * (not drawn)
    assert drawn or found.near("sampler")[0][0] == "speculative"


def test_int8_of_the_routers_too():
    made, coarse = experts(), experts()
    rollouts = small.sampled(made)
    with torch.no_grad():
        for name, weight in coarse.named_parameters():
            if "experts" in name or name.endswith(("gate.weight", "_proj.weight")):
                scale = weight.abs().amax(-1, keepdim=True) / 127
                weight.copy_((weight / scale).round() * scale)
    want = small.logprobs(small.logits(coarse, rollouts), rollouts)
    wanted, found = {"format": "int8 per channel", "router": "too"}, []
    attempt = lambda parameter, change: found.append((parameter, change)) or 1.0  # noqa: E731
    formats.quantized_weights(Case(Network(made, None)), attempt)
    (change,) = (change for parameter, change in found if parameter == wanted)
    zeros = [torch.zeros(len(r)) for r in rollouts.responses]
    responses = gather([from_arrays(rollouts.arrays(zeros, zeros))], 64)
    got = recompute(Network(made, None), responses, [change]).logprobs
    np.testing.assert_allclose(got, torch.cat(want).numpy(), atol=2e-4)


@pytest.mark.long
def test_damage_is_named_where_bfloat16_takes_other_experts(tmp_path):
    """The sampler rounds as the model in bf16 does; float32 takes other experts at some tokens."""
    made, other = experts(), experts()
    with torch.no_grad():
        other.model.layers[0].self_attn.v_proj.weight.zero_()
    rollouts = small.sampled(other)
    trainer = small.logprobs(small.logits(made, rollouts), rollouts)
    z = [row.float() for row in small.logits(other.bfloat16(), rollouts)]
    dump = from_arrays(rollouts.arrays(small.logprobs(z, rollouts), trainer))
    (cause,) = examine([dump], small.saved(made, tmp_path)).causes
    assert (cause.side, cause.name, cause.parameter["layer"]) == ("sampler", "bad_layer", 0)


def in_train_mode(made, rollouts):
    made.train()
    torch.manual_seed(5)
    values = small.logprobs(small.logits(made, rollouts), rollouts)
    made.eval()
    return values


def test_dropout_of_the_config_is_named_with_its_rate(tmp_path):
    made = small.model(attention_dropout=0.1)
    rollouts = small.sampled(made)
    causes, verdict = found_of(tmp_path, made, rollouts, in_train_mode(made, rollouts))
    assert causes == [("trainer", "dropout", {"attention_dropout": 0.1})]
    assert verdict.verdict == "dropout" and verdict.causes[0].explains > 0.7


@pytest.mark.long
def test_other_noise_is_no_dropout(tmp_path):
    made = small.model(attention_dropout=0.1)
    rollouts = small.sampled(made)
    right = small.logprobs(small.logits(made, rollouts), rollouts)
    draws = torch.Generator().manual_seed(1)
    noisy = [v - 0.3 * torch.rand(v.shape, generator=draws) for v in right]
    causes, verdict = found_of(tmp_path, made, rollouts, noisy)
    assert causes == [] and verdict.verdict == "unknown"
    assert "routes" not in verdict.found


def test_a_model_without_dropout_has_none(tmp_path):
    made, other = small.model(), small.model(attention_dropout=0.1)
    rollouts = small.sampled(made)
    causes, verdict = found_of(tmp_path, made, rollouts, in_train_mode(other, rollouts))
    assert causes == [] and verdict.verdict == "unknown"

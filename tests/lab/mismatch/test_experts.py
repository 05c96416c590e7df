"""A mixture of experts in INT8, and with other experts, against transformers' own forward."""

import numpy as np
import peaked_llama as small
import pytest
import torch
import transformers as hf

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.hypotheses import weights
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


def found_of(tmp_path, made, rollouts, trainer):
    sampler = small.logprobs(small.logits(made, rollouts), rollouts)
    dump = from_arrays(rollouts.arrays(sampler, trainer))
    found = examine([dump], small.saved(made, tmp_path / "model"))
    return [(c.side, c.name, c.parameter) for c in found.causes], with_model([dump], found)


def test_other_experts_at_some_tokens_have_no_name_but_a_sentence(tmp_path):
    made = experts()
    rollouts = small.sampled(made)
    draws = torch.Generator().manual_seed(1)

    def flipped(router, args, out):
        return (
            out[0],
            out[1],
            out[2].roll(1, 0) if torch.rand((), generator=draws) < 0.5 else out[2],
        )

    hooked = [layer.mlp.gate.register_forward_hook(flipped) for layer in made.model.layers]
    trainer = small.logprobs(small.logits(made, rollouts), rollouts)
    for handle in hooked:
        handle.remove()
    causes, verdict = found_of(tmp_path, made, rollouts, trainer)
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
    weights.quantized_weights(Case(Network(made, None)), attempt)
    (change,) = (change for parameter, change in found if parameter == wanted)
    zeros = [torch.zeros(len(r)) for r in rollouts.responses]
    responses = gather([from_arrays(rollouts.arrays(zeros, zeros))], 64)
    got = recompute(Network(made, None), responses, [change]).logprobs
    np.testing.assert_allclose(got, torch.cat(want).numpy(), atol=2e-4)

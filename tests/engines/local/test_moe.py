"""The mixture of experts: one model in three ways, and routes that are recorded and replayed."""

import pytest
import torch
import trainers

from nemo_algos.engines.local.schema import SHAPES, TINY_MOE, GenerationSection
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy, token_logprobs

P, L, G, S, V, K, EXPERTS = 3, 6, 4, 12, 110, 2, 8


def moe(seed=0):
    torch.manual_seed(seed)
    model = Tiny(SHAPES[TINY_MOE])
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data *= 4
    return model


@pytest.fixture(scope="module")
def model():
    return moe().double()


@pytest.fixture(scope="module")
def batch():
    rng = torch.Generator().manual_seed(1)
    prompts, responses = (torch.randint(108, s, generator=rng) for s in ((P, L), (P * G, S)))
    responses[3], responses[6, :5] = responses[0], responses[0, :5]
    return prompts, torch.arange(P).repeat(G), responses


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_steps_with_a_cache_give_the_logits_and_experts_of_the_forward(model, batch):
    prompts, group, responses = batch
    (hidden, cache), row = model.prompt(prompts), group
    stepped = [model.logits(hidden)[row]]
    for token in responses[:, :-1].T:
        prefixes, row = (row * V + token).unique(return_inverse=True)
        hidden, cache = model.step(prefixes % V, prefixes // V, cache)
        stepped.append(model.logits(hidden)[row])
    logits, experts = model.routed_logits(*batch)
    close(torch.stack(stepped, 1), logits)
    assert experts.shape == (P * G, L + S - 1, 2, K)
    assert torch.equal(torch.stack([of_layer for *_, of_layer in cache], 2)[row], experts)
    assert (experts[..., 0] != experts[..., 1]).all()
    assert all(experts.flatten().bincount(minlength=EXPERTS) > 0)


@pytest.fixture(scope="module")
def mixtral(model, tmp_path_factory):
    from transformers import MixtralForCausalLM

    folder = tmp_path_factory.mktemp("mixtral")
    TinyPolicy(model, GenerationSection(max_new_tokens=S)).save(str(folder))
    loaded, report = MixtralForCausalLM.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    return loaded.eval()


def test_transformers_has_the_same_logits_and_gradient(model, batch, mixtral):
    prompts, group, responses = batch
    ids = torch.cat((prompts[group], responses), 1)
    both = model.response_logits(*batch), mixtral(ids).logits[:, L - 1 : -1]
    close(*both)
    weights = torch.randn(len(group), S, generator=torch.Generator().manual_seed(2))
    for logits in both:
        (weights * token_logprobs(logits, responses)).mean().backward()
    for mine, theirs in zip(model.layers, mixtral.model.layers, strict=True):
        close(mine.router.gate.weight.grad, theirs.mlp.gate.weight.grad)
        gate, up = mine.gate_up.weight.grad.unflatten(0, (2, EXPERTS, -1))
        close(torch.cat((gate, up), 1), theirs.mlp.experts.gate_up_proj.grad)
        down = mine.down.weight.grad.unflatten(1, (EXPERTS, -1)).transpose(0, 1)
        close(down, theirs.mlp.experts.down_proj.grad)
    close(model.embed.weight.grad, mixtral.model.embed_tokens.weight.grad)


@torch.no_grad()
def test_replayed_experts_are_taken_with_the_routers_own_weights(model, batch):
    logits, own = model.routed_logits(*batch)
    replayed, again = model.routed_logits(*batch, own.flip(-1))
    close(replayed, logits)
    assert torch.equal(again, own)
    others = (own + 1) % EXPERTS
    moved, routers = model.routed_logits(*batch, others)
    assert ((moved - logits).abs().amax((1, 2)) > 1e-2).all()
    assert torch.equal(routers[:, :, 0], own[:, :, 0])  # the first layer reads the same
    x, router = torch.ones(1, 64).double(), model.layers[0].router
    weights, _ = router(x, torch.tensor([[6, 1]]))
    assert weights.nonzero()[:, 1].tolist() == [1, 6]
    close(weights[0, [1, 6]], router.gate(x)[0, [1, 6]].softmax(-1))


def policy(replays=False):
    return TinyPolicy(moe(), trainers.UP_TO_12, replays)


def test_replay_keeps_the_samplers_experts_while_the_weights_move():
    """Without it a router that has moved sends tokens elsewhere."""
    free, bound = policy(), policy(replays=True)
    drawn = free.generate([[1, 2, 3]], 8, torch.Generator().manual_seed(0))
    every, logprobs = torch.arange(8), []
    for made in (free, bound):
        made.model.layers[1].router.gate.weight.data.neg_()
        with torch.no_grad():
            logprobs.append(made.logprobs(drawn, every)[drawn.mask])
    assert (logprobs[0] - logprobs[1]).abs().max() > 1e-3
    bound.logprobs(drawn, every).sum().backward()
    assert bound.model.layers[1].router.gate.weight.grad.abs().max() > 0

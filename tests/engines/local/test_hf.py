"""HFPolicy's log-probs and gradients are the model's, whatever the padding and precision."""

import warnings

import pytest
import small_llama
import torch
from small_llama import WORDS

from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.engines.local.prompt_sharing import micro_batches

EOS, STOP, PAD = (WORDS.index(w) for w in ("<eos>", "<stop>", "<pad>"))
PROMPTS = [[7, 20, 9], [5, 6, 30, 31, 14, 8, 11, 29, 4], [33], [10, 13, 21, 4, 25]]
G, TEMPERATURE = 6, 0.8


def policy_of(folder, **settings):
    return HFPolicy(small_llama.section(folder, **settings), torch.device("cpu"))


def drawn_by(policy, seed=0):
    return policy.generate(PROMPTS, G, torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def direct(policy, experience, row):
    """Log-probs and entropies of one response by a plain forward of its own, without padding."""
    prompt, response = PROMPTS[experience.group[row]], experience.responses()[row]
    logits = policy.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logp = (logits.double() / TEMPERATURE).log_softmax(-1)
    logprobs = logp.gather(1, torch.tensor(response)[:, None])[:, 0]
    return logprobs.float(), -(logp.exp() * logp).sum(1).float()


@pytest.mark.parametrize("generation_batch_size", [64, 24, 7, 1])
def test_generated_logprobs_and_entropy_are_the_models(folder, generation_batch_size):
    policy = policy_of(folder, generation_batch_size=generation_batch_size)
    drawn = drawn_by(policy)
    assert drawn.group.tolist() == [i for i in range(len(PROMPTS)) for _ in range(G)]
    assert torch.equal(drawn.gen_logprobs, drawn.logprobs)
    assert drawn.mask.shape == drawn.logprobs.shape == drawn.entropy.shape == drawn.tokens.shape
    for row in range(len(PROMPTS) * G):
        mask = drawn.mask[row]
        for got, want in zip(
            (drawn.logprobs, drawn.entropy), direct(policy, drawn, row), strict=True
        ):
            close(got[row][mask], want)
            assert not got[row][~mask].any()
    assert drawn.tokens[~drawn.mask].unique().tolist() == [PAD]
    shown = [p[m].tolist() for p, m in zip(drawn.prompts, drawn.prompt_mask, strict=True)]
    assert shown == PROMPTS and drawn.prompt_mask[:, -1].all()
    assert len(set(map(tuple, drawn.responses()))) > 20  # no two chunks draw the same


@pytest.mark.parametrize(
    "rows", [range(24), [23, 0, 11, 6], [8, 7], [13], [17, 17]], ids=lambda rows: len(rows)
)
def test_the_company_of_a_row_does_not_change_its_logprobs(folder, rows):
    policy = policy_of(folder)
    drawn = drawn_by(policy)
    got = policy.logprobs(drawn, torch.tensor(rows))
    assert got.shape == (len(rows), drawn.mask.shape[1]) and got.requires_grad
    for values, row in zip(got.detach(), rows, strict=True):
        close(values[drawn.mask[row]], direct(policy, drawn, row)[0])
        assert not values[~drawn.mask[row]].any()


def gradient(policy, drawn, batches):
    weights = torch.linspace(-1, 1, drawn.mask.numel()).view(drawn.mask.shape)
    policy.model.zero_grad()
    for rows in batches:
        (weights[rows] * policy.logprobs(drawn, rows)).sum().backward()
    return [p.grad.clone() for p in policy.model.parameters()]


def test_the_gradient_is_the_same_in_one_batch_and_row_by_row(folder):
    policy = policy_of(folder)
    drawn, every = drawn_by(policy), torch.arange(24)
    whole = gradient(policy, drawn, [every])
    for batches in (every.split(1), every.flip(0).split(5)):
        for got, want in zip(gradient(policy, drawn, batches), whole, strict=True):
            close(got / 24, want / 24)


@pytest.mark.parametrize("ends", [[EOS], [STOP], [STOP, EOS]])
def test_responses_end_at_the_models_and_the_tokenizers_end_tokens(tmp_path, ends):
    stop = ends if len(ends) > 1 else ends[0]
    policy = policy_of(
        small_llama.save(tmp_path, eos_token_id=stop, initializer_range=0.05),
        generation={"max_new_tokens": 60},
    )
    drawn = drawn_by(policy)
    all_ends, ended = {EOS, *ends}, set()
    for tokens, response in zip(drawn.tokens.tolist(), drawn.responses(), strict=True):
        assert not all_ends & set(response[:-1])
        assert response[-1] in all_ends or len(response) == 60
        assert set(tokens[len(response) :]) <= {PAD}
        ended |= all_ends & set(response)
    assert ended == all_ends and drawn.mask.shape[1] == max(map(len, drawn.responses()))


def test_dropout_is_off_and_recomputed_activations_give_the_same_gradient(tmp_path):
    small_llama.save(tmp_path, attention_dropout=0.5)
    calls, gradients = [], []
    for checkpointing in (False, True):
        policy = policy_of(tmp_path, dtensor_cfg={"activation_checkpointing": checkpointing})
        drawn = drawn_by(policy)
        close(policy.logprobs(drawn, torch.arange(24)).detach(), drawn.logprobs)
        count = []
        policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, c=count: c.append(1))
        gradients.append(gradient(policy, drawn, torch.arange(24).split(8)))
        calls.append(len(count))
    assert calls == [3, 6]
    for one, other in zip(*gradients, strict=True):
        close(one, other)


def test_bfloat16_keeps_float32_weights_and_rescores_the_draw(folder):
    policy = policy_of(folder, precision="bfloat16")
    drawn = drawn_by(policy)
    gap = (drawn.logprobs - drawn.gen_logprobs)[drawn.mask].abs()
    assert 1e-4 < gap.mean() < 0.1
    every = micro_batches(drawn, torch.arange(24), policy.config, 32)
    assert [len(rows) for rows in every] == [4] * 6
    for rows in every:  # the ratio is exactly 1 before the first update
        assert torch.equal(policy.logprobs(drawn, rows), drawn.logprobs[rows])
    policy.rescores = False  # with old_policy: sampler
    drawn = drawn_by(policy)
    assert torch.equal(drawn.logprobs, drawn.gen_logprobs)
    entropy = torch.cat([direct(policy, drawn, row)[1] for row in range(24)])
    torch.testing.assert_close(drawn.entropy[drawn.mask], entropy, rtol=0, atol=0.1)
    assert drawn.entropy.dtype == drawn.logprobs.dtype == torch.float32
    assert not drawn.logprobs[~drawn.mask].any() and not drawn.entropy[~drawn.mask].any()
    for grad, parameter in zip(
        gradient(policy, drawn, every), policy.model.parameters(), strict=True
    ):
        assert grad.dtype == parameter.dtype == torch.float32


def test_a_dynamic_batch_costs_the_forward_no_more_than_its_tokens(folder):
    policy = policy_of(folder, dynamic_batching={"enabled": True, "train_mb_tokens": 60})
    drawn, seen = drawn_by(policy), []
    forward = policy.model.forward
    policy.model.forward = lambda **kw: seen.append(kw["input_ids"].numel()) or forward(**kw)
    got = torch.zeros_like(drawn.logprobs)
    for rows in micro_batches(drawn, torch.arange(24), policy.config, 32):
        got[rows] = policy.logprobs(drawn, rows).detach()
    assert max(seen) <= 60 and len(seen) > 4
    close(got, drawn.logprobs)


def test_generation_uses_no_name_that_transformers_is_about_to_drop(folder):
    """It renamed the cache in 5.24, and drops the old name in 5.40."""
    policy = policy_of(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        drawn_by(policy)

"""LoRA: what is trained, what a checkpoint and a saved model hold, and the reference policy."""

import pytest
import small_llama
import torch

from nemo_algos.engines.local.build import _reference
from nemo_algos.engines.local.hf import HFPolicy, load_model
from nemo_algos.engines.local.lora import add_adapters, load_trained, trainable_state
from nemo_algos.engines.local.prompt_sharing import micro_batches
from nemo_algos.engines.local.schema import LoraSection
from nemo_algos.preflight.check.local.judge import parse

PROMPTS, ROWS = [[7, 20, 9], [5, 6, 30, 31]], torch.arange(8)


def policy_of(folder, **lora):
    settings = {"lora_cfg": {"enabled": True, "dim": 4, **lora}}
    return HFPolicy(small_llama.section(folder, dtensor_cfg=settings), torch.device("cpu"))


def moved(policy):
    """The policy with adapters that do something."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return policy


def drawn_by(policy):
    return policy.generate(PROMPTS, 4, torch.Generator().manual_seed(0))


def test_adapters_alone_are_trained_and_begin_as_the_model(folder):
    plain = HFPolicy(small_llama.section(folder), torch.device("cpu"))
    policy, drawn = policy_of(folder), drawn_by(plain)
    assert torch.equal(drawn_by(policy).tokens, drawn.tokens)
    policy.logprobs(drawn, ROWS).sum().backward()
    graded = {n for n, p in policy.model.named_parameters() if p.grad is not None}
    assert graded == set(trainable_state(policy.model)) and all(".lora_" in n for n in graded)
    assert len(graded) == 2 * 2 * 7  # A and B, two layers, seven projections; no output layer


def test_with_adapters_trees_are_exact_and_generation_agrees(folder):
    policy = moved(policy_of(folder))
    drawn = drawn_by(policy)
    assert policy.tree_width(drawn) == 32
    for rows in micro_batches(drawn, ROWS, policy.config, 32):
        got = policy.logprobs(drawn, rows)
        torch.testing.assert_close(got, drawn.logprobs[rows], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(got, policy._score(drawn, rows, 0)[0], rtol=1e-4, atol=2e-5)


def test_the_reference_is_the_model_without_its_adapters(folder):
    plain = HFPolicy(small_llama.section(folder), torch.device("cpu"))
    policy = moved(policy_of(folder))
    drawn = drawn_by(policy)
    settings = {"lora_cfg": {"enabled": True}}
    section = small_llama.section(folder, dtensor_cfg=settings)
    config = type("Config", (), {"policy": section})  # what of it is read
    reference = _reference(config, policy, None)
    assert reference.args == (policy,)  # no second copy
    want, own = plain.logprobs(drawn, ROWS), policy.logprobs(drawn, ROWS)
    torch.testing.assert_close(reference(drawn, ROWS), want)
    assert (own - want).abs().max() > 0.1


def test_a_checkpoint_holds_adapters_and_a_saved_model_has_them_merged(folder, tmp_path):
    policy = moved(policy_of(folder))
    state, drawn = trainable_state(policy.model), drawn_by(policy)
    assert sum(x.numel() for x in state.values()) < 0.5 * sum(
        p.numel() for p in policy.model.parameters()
    )
    want = policy.logprobs(drawn, ROWS)
    policy.save(str(tmp_path))
    torch.testing.assert_close(policy.logprobs(drawn, ROWS), want, rtol=0, atol=0)
    assert not list(tmp_path.glob("adapter*"))
    merged = HFPolicy(small_llama.section(tmp_path), torch.device("cpu"))
    torch.testing.assert_close(merged.logprobs(drawn, ROWS), want, rtol=1e-4, atol=2e-5)
    again = policy_of(folder)
    load_trained(again.model, state)
    assert torch.equal(again.logprobs(drawn, ROWS), want)
    with pytest.raises(RuntimeError, match="base_"):
        load_trained(merged.model, state)


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        ({"target_modules": ["*_proj"]}, 7),
        ({"target_modules": ["q_proj", "*.mlp.*_proj"]}, 4),
        ({"exclude_modules": ["*.mlp.*", "o_proj"]}, 3),
    ],
)
def test_layers_by_name(folder, names, layers):
    policy = policy_of(folder, match_all_linear=False, **names)
    assert len(trainable_state(policy.model)) == 2 * 2 * layers


def test_adapters_leave_the_random_numbers_as_they_were(folder):
    model, before = load_model(small_llama.section(folder)), torch.random.get_rng_state()
    add_adapters(model, LoraSection(enabled=True))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_both_ways_to_begin(folder):
    for start, spread in (("xavier", (2 / (32 + 4)) ** 0.5), ("uniform", (1 / 32 / 3) ** 0.5)):
        a = trainable_state(policy_of(folder, lora_A_init=start).model)
        q = torch.cat([x.flatten() for n, x in a.items() if "q_proj.lora_A" in n])
        assert q.std().item() == pytest.approx(spread, rel=0.15)


def test_layers_that_are_not_there(folder):
    with pytest.raises(ValueError, match=r"lora_cfg\.target_modules: Target modules .*nowhere"):
        policy_of(folder, match_all_linear=False, target_modules=["nowhere"])


MATCH = "policy.dtensor_cfg.lora_cfg.match_all_linear: "


@pytest.mark.parametrize(
    ("lora", "sentence"),
    [
        ({"target_modules": ["q_proj"]}, MATCH),
        ({"match_all_linear": False}, MATCH),
        ({"enabled": True}, "lora_cfg.enabled: countdown-tiny"),
        ({"dropout": 0.1}, "lora_cfg.dropout: "),
        ({"use_triton": True}, "lora_cfg.use_triton"),
    ],
)
def test_what_is_refused(lora, sentence):
    from nemo_algos import config

    plain = config.load(config.SHIPPED / "grpo.yaml", [])
    plain["policy"]["dtensor_cfg"] = {"lora_cfg": lora}
    with pytest.raises(ValueError) as error:
        parse(plain)
    assert sentence in str(error.value)

"""Facts of models: what transformers builds of a config.json, against cards; layers' names."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from releases import MAIN
from transformers import AutoModel, DeepseekV3Config, LlamaConfig, Qwen3MoeConfig

from nemo_algos.preflight.check.decoder import modules
from nemo_algos.preflight.check.known_models import configs, facts, model, table
from nemo_algos.preflight.plan.workload import whole

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
FAMILIES = yaml.safe_load((Path(__file__).parent / "families.yaml").read_text())


def of(name):
    values = FAMILIES[name].get("config")
    return facts(values, name) if values else table()[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_are_those_of_the_card(name):
    card, found = FAMILIES[name], of(name)
    assert found.parameters / 1e9 == pytest.approx(card["billions"], rel=0.01)
    if card["active"]:
        assert found.active_parameters / 1e9 == pytest.approx(card["active"], rel=0.01)


@pytest.mark.parametrize("name", [*table(), *FAMILIES])
def test_the_memory_model_holds_every_parameter(name):
    found = table().get(name) or of(name)
    assert whole(found) == pytest.approx(found.parameters, rel=0.005)


def test_the_vision_tower_is_counted_with_its_model():
    found = table()["Qwen/Qwen2.5-VL-3B-Instruct"]
    assert (found.parameters, found.encoders) == (3_754_622_976, 668_684_288)  # of its checkpoint


# by default one of each family: what transformers builds of it takes the same code
FAMILY = {values["model_type"]: name for name, values in configs().items()}
OTHERS = [name for name in configs() if name not in FAMILY.values()]


@pytest.mark.parametrize(
    "name", [*FAMILY.values(), *(pytest.param(n, marks=pytest.mark.long) for n in OTHERS)]
)
def test_the_table_is_what_transformers_builds(name):
    assert facts(configs()[name], name) == table()[name]


SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
# mixers whose cache no attention has; experts that outweigh them in the sum of parameters
UNSEEN = {
    "kimi_linear": {},
    "longcat_flash": {"num_layers": 2},
    "minimax": SMALL,
    "zamba2": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], **SMALL},
    "deepseek_v2": {"num_experts_per_tok": None},
    "deepseek_v3": {"num_experts_per_tok": None},
}


@pytest.mark.parametrize("family", UNSEEN)
def test_what_the_model_of_memory_does_not_know_is_refused_in_a_sentence(family):
    with pytest.raises(ValueError, match="`plan` does not support the modules") as refusal:
        facts({"model_type": family, **UNSEEN[family]}, family)
    assert "\n" not in str(refusal.value)


# vision, audio, and what came after the table: `check` judges no layout of them
UNKNOWN = {
    *("Qwen/Qwen2.5-Omni-3B", "Qwen/Qwen2.5-Omni-7B"),
    *("Qwen/Qwen3-Omni-30B-A3B-Instruct", "mistralai/Mistral-Medium-3.5-128B"),
    *("google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it", "google/gemma-4-E2B-it"),
    *("google/gemma-4-E4B-it", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16"),
    "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",
}


def test_the_models_of_nemo_rls_configs_are_in_the_table_but_for_those_named_here():
    named = {c["policy"]["model_name"] for c in MAIN.grpo.values()}
    unknown = {name for name in named - table().keys() if not name.startswith(("Follow", "/path"))}
    assert unknown == UNKNOWN


def test_windows_states_and_latents_of_the_cache():
    """Layers of each kind, and bytes or numbers that one keeps, by hand."""
    oss, gemma = of("openai/gpt-oss-120b"), of("google/gemma-3-27b-it")
    assert (oss.having("*"), oss.having("W"), oss.window) == (18, 18, 128)
    assert (gemma.having("*"), gemma.having("W"), gemma.window) == (10, 52, 1024)
    following, nano = of("Qwen/Qwen3-Next-80B-A3B-Instruct"), of("nvidia/Nemotron-H-8B-Base-8K")
    assert (following.having("*"), following.having("M")) == (12, 36)
    assert (nano.having("*"), nano.having("M"), nano.having("-")) == (4, 24, 24)
    assert following.mamba.cached == 4 * 32 * 128 * 128 + 2 * 3 * 8192
    assert nano.mamba.cached == 4 * 8192 * 128 + 2 * 3 * (8192 + 2 * 8 * 128)
    assert table()["deepseek-ai/DeepSeek-V3"].attention.cached == 512 + 64
    assert not (nano.gated or of("nvidia/Nemotron-4-15B").gated) and oss.gated


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "no_such_family"}, "no_such_family"),
        ({}, "model_type None"),
        (LLAMA | {"num_attention_heads": 0}, "llama"),
        ({"model_type": "mamba2", "hidden_size": 64, "num_heads": 2, "head_dim": 64}, "Mamba2"),
        ({"model_type": "bert"}, "BertLMHeadModel"),
        (LLAMA | {"model_type": "t5"}, "T5"),
    ],
)
def test_a_family_that_is_not_known_is_refused_by_name(tmp_path, values, said):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=said) as refusal:
        model(str(tmp_path))
    assert str(tmp_path) in str(refusal.value) and "pydantic" not in str(refusal.value)


def test_without_transformers_a_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ValueError, match="Install transformers"):
        model(str(tmp_path))
    assert len(model("Qwen/Qwen3-8B").layers) == 36


@pytest.mark.parametrize(
    ("name", "known", "positions"),
    [  # by stem, of the most positions; and by a line of its own
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.3-70B-Instruct", 131072),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B", 262144),
        ("Qwen/Qwen3-14B-Base", "Qwen/Qwen3-14B", 40960),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B", 32768),
        ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-32B", 32768),
        ("Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-14B", 32768),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B", 262144),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "Qwen/Qwen2.5-7B", 131072),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B", 131072),
    ],
)
def test_a_model_of_a_known_one_s_shape(name, known, positions):
    shape = table()[known].model_copy(update={"max_position_embeddings": positions})
    assert model(name) == shape
    assert model(name, {"max_position_embeddings": 8}).max_position_embeddings == 8


@pytest.mark.parametrize("name", ["Qwen/Qwen3-15B", "Qwen/Qwen2.5-Coder-14B-Instruct", "a/Base"])
def test_a_model_of_an_unknown_shape_is_refused_with_the_way_to_get_it(name):
    with pytest.raises(ValueError, match=f"hf download {name} config.json"):
        model(name)


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_a_config_in_the_hub_s_cache_is_found(tmp_path, monkeypatch, variable):
    """As `hf download NAME config.json` leaves it."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    folder = tmp_path / ("hub" if variable == "HF_HOME" else "") / "models--a--b"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0a1b")
    (folder / "snapshots" / "0a1b").mkdir(parents=True)
    with pytest.raises(ValueError, match="hf download a/b"):
        model("a/b")
    (folder / "snapshots" / "0a1b" / "config.json").write_text(json.dumps(LLAMA))
    assert model("a/b").attention.heads == 4
    assert len(model("a/b", {"num_hidden_layers": 3}).layers) == 3


def test_overrides_change_the_facts():
    name = "Qwen/Qwen3.5-35B-A3B-Base"
    assert model(name, {"text_config": {"router_aux_loss_coef": 0.0}}) == table()[name]
    assert model("Qwen/Qwen3-8B", {"max_position_embeddings": 8}).max_position_embeddings == 8
    assert len(model("Qwen/Qwen3-8B", {"num_hidden_layers": 4}).layers) == 4
    whole, tied = table()["Qwen/Qwen3-8B"], model("Qwen/Qwen3-8B", {"tie_word_embeddings": True})
    assert tied.tied and whole.parameters - tied.parameters == 151936 * 4096  # a default's key
    assert model("Qwen/Qwen3-8B", {"router_aux_loss_coef": 0, "rope_scaling": {}}) == whole
    assert model("Qwen/Qwen3-8B", {"attention_bias": True}).query_bias


SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LATENT = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
LATENT |= {"n_routed_experts": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
LATENT |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "experts": Qwen3MoeConfig(**SMALL, num_experts=4, moe_intermediate_size=8, head_dim=8),
    "latent": DeepseekV3Config(**SMALL, **LATENT, q_lora_rank=8),
    "latent_query": DeepseekV3Config(**SMALL, **LATENT, q_lora_rank=None),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_a_models_linear_layers_are_these(config):
    with torch.device("meta"):
        built = AutoModel.from_config(config)
    linear = {n.removesuffix(".weight") for n, p in built.named_parameters() if p.dim() > 1}
    model, named = facts(config.to_dict(), "here"), {"embed_tokens"}
    for layer in range(len(model.layers)):
        parts = (part for names in modules(model, layer).values() for part in names)
        named |= {f"layers.{layer}.{part}" for part in parts}
    assert named == linear

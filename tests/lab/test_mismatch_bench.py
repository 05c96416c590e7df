"""MismatchBench: how answers are counted, and that both sides of a planted dump agree."""

# pyright: reportMissingImports=false

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/mismatch"))

from kinds import CORRECT
from plant import HELD_OUT, kinds
from plants_sampling import temperature
from rollouts import GROUP, Side, ended, generate
from rollouts import score as compute
from score import agrees, judge
from worlds import World


def truth(*causes: dict, also: tuple[str, ...] = (), faint: bool = False) -> dict:
    return {"causes": list(causes), "also": list(also), "faint": faint}


def planted(*names: str, **parameters: dict) -> dict:
    return {"names": list(names), "sides": ["sampler"], "parameters": parameters}


def named(*names: str, **parameter: float) -> dict:
    causes = [{"name": name, "parameter": parameter} for name in names]
    return {"verdict": names[0], "causes": causes}


HOT = planted("temperature", temperature={"near": [0.7, 0.03]})
CUT = planted("top_p", "top_k")
CLEAN = truth(also=("clean",))
UNCLAIMED = truth(also=("unknown",))


@pytest.mark.parametrize(
    ("fact", "answer", "outcome"),
    [
        (truth(HOT), named("temperature", temperature=0.72), ("right", True)),
        (truth(HOT), named("temperature", temperature=0.8), ("right", False)),
        (truth(HOT), named("top_p"), ("wrong", False)),
        (truth(HOT), named("temperature", "top_p", temperature=0.7), ("wrong", False)),
        (truth(HOT), {"verdict": "unknown", "causes": []}, ("unknown", False)),
        (truth(HOT), {"verdict": "clean"}, ("wrong", False)),
        (truth(HOT, faint=True), {"verdict": "clean"}, ("unknown", False)),
        (truth(HOT, faint=True), named("top_p"), ("wrong", False)),
        (truth(HOT, CUT), named("top_k"), ("part", True)),
        (truth(HOT, CUT), named("top_k", "temperature", temperature=0.7), ("right", True)),
        (CLEAN, {"verdict": "clean"}, ("right", True)),
        (CLEAN, named("rows"), ("wrong", False)),
        (CLEAN, {"verdict": "error"}, ("error", False)),
        (UNCLAIMED, {"verdict": "unknown", "causes": []}, ("right", True)),
        (UNCLAIMED, {"verdict": "clean"}, ("wrong", False)),
        (UNCLAIMED, named("top_p"), ("wrong", False)),
    ],
)
def test_outcomes(fact: dict, answer: dict, outcome: tuple[str, bool]) -> None:
    assert judge(fact, answer) == outcome


@pytest.mark.parametrize(
    ("rule", "value", "fits"),
    [
        ({"any": ["v1"]}, "runs/previous/v1/", True),
        ({"any": ["v1"]}, 1, True),
        ({"any": ["v1"]}, 2, False),
        ({"any": [-1, 1]}, 1, True),
        ({"all": [1, 2, 3, 4]}, [1, 2, 3, 9], True),
        ({"all": [1, 2, 3, 4]}, [1, 2, 8, 9], False),
        ({"all": ["mlp"]}, ["model.layers.0.mlp"], True),
        ({"near": [2, 0]}, True, False),
    ],
)
def test_parameters(rule: dict, value: object, fits: bool) -> None:
    assert agrees({"key": rule}, {"other": value}) is fits


@pytest.mark.filterwarnings("error::FutureWarning")
def test_a_tempered_sampler_agrees_with_a_tempered_trainer_alone() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, initializer_range=0.4, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    tokenizer = SimpleNamespace(eos_token_id=2, pad_token_id=0)
    model = LlamaForCausalLM(config).eval()
    prompts = [[1, 5, 9], [1, 7, 8, 9, 11]]
    world = World("tiny", Path(), model, tokenizer, prompts, torch.float32, length=12)
    hot = Side(logits=temperature(0.7))
    tokens, sampled = generate(world, hot, prompts, seed=3)
    mask = ended(tokens, 2)
    assert tokens.shape == (2 * GROUP, 12)
    assert mask.sum() > 40
    tempered, raw = (compute(world, side, prompts, tokens)[0] for side in (hot, CORRECT))
    assert (tempered - sampled)[mask].abs().max() < 1e-4
    assert (raw - sampled)[mask].abs().mean() > 0.05


def test_each_seed_has_parameters_of_its_own() -> None:
    """Of the same kinds, so that no value of a search's grid is the bench's."""
    seeds = (0, 1, HELD_OUT)
    made = [{kind.name: kind for kind in kinds(seed)} for seed in seeds]
    assert made[0].keys() == made[1].keys() == made[2].keys()
    for name in ("temperature-cold", "top_p-wide", "repetition_penalty-any", "rope_base-high"):
        values = {str(of[name].causes[0].parameters) for of in made}
        assert len(values) == len(seeds), name
    again = {kind.name: kind for kind in kinds(0)}
    assert all(again[name].causes == made[0][name].causes for name in again)
    assert {"unclaimed-rare-spikes", "unclaimed-rare-forced"} <= made[0].keys()

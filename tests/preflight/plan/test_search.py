"""Layouts and remedies of `plan`, held against `check`: what it shows, `check` must pass."""

import json
from dataclasses import replace
from operator import attrgetter

import pytest
from matrix import some_of
from omegaconf import OmegaConf
from planned import EXAMPLE, OFFLOADED, planned
from releases import MAIN
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.config import apply_overrides, find, read
from nemo_algos.preflight.check.decoder import Attention
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.known_models import table
from nemo_algos.preflight.check.layout import MEGATRON
from nemo_algos.preflight.check.rules.generation import splits_heads
from nemo_algos.preflight.plan.layouts import gpu_of, of, plan, with_keys
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS
from nemo_algos.preflight.plan.search import (
    _cheapest,
    _with,
    checker,
    ends,
    layouts,
    possible,
    remedy,
)

RECIPES = {  # and nodes
    "qwen3-30b-a3b-4n8g-ep8": 4,
    "qwen3-32b-4n8g-tp4pp4": 4,
    "llama3.3-70b-8n8g-tp4pp4": 8,
    "qwen3-235b-a22b-16n8g-tp2pp8cp2ep16": 16,
    "deepseek-v3-32n8g-tp8pp8cp4ep32": 32,
}
EXPERT = f"{MEGATRON}.expert_model_parallel_size"


def recipe(name, *overrides):
    return apply_overrides(read(find(f"recipes/{name}.yaml")), list(overrides))


def judged(written):
    """The plan, and the errors that `check` finds."""
    run, found = judge(written, MAIN)
    assert run.model
    planned = plan(run.plain, run.model, GPUS[gpu_of(run.plain)])
    return planned, [str(f) for f in found if f.severity == "error"]


def of_recipe(name, *overrides):
    written = recipe(name, *overrides)
    return judged(written)[0], checker(written, MAIN)


def accepts(**change):
    """What `check` says of EXAMPLE with these keys."""
    written = OmegaConf.create(
        {"engine": "nemo_rl", "nemo_rl": {"config": EXAMPLE}, "method": {"name": "grpo"}}
    )
    for path, value in change.items():
        OmegaConf.update(written, path, value, force_add=True)
    return checker(written, MAIN)


@pytest.mark.parametrize(("name", "nodes"), some_of(RECIPES.items(), 2))
def test_check_passes_every_layout_shown(name, nodes):
    p, passes = of_recipe(name)
    found, _ = layouts(p, nodes, passes, 8)
    assert found and all(x.trains and x.generates and possible(x.run) for x in found)
    assert {x.run.layout.nodes for x in found} == {nodes}
    for x in found:
        again, errors = judged(recipe(name, *(f"{k}={json.dumps(v)}" for k, v in x.change.items())))
        assert errors == []
        assert again.step_seconds == x.step_seconds and again.training == x.training


def test_the_fastest_come_first_and_the_tight_last():
    p, passes = of_recipe("qwen3-32b-4n8g-tp4pp4")
    found, _ = layouts(p, 1, passes, 40)
    keys = [(x.tight, x.step_seconds) for x in found]
    assert keys == sorted(keys) and {x.tight for x in found} == {True, False}
    assert all(sum(x.training.values()) * 1.05 > 80e9 for x in found if x.tight)


@pytest.mark.parametrize(
    ("layers", "stages", "first", "last"),
    [(61, 16, 3, 2), (94, 8, 11, 11), (94, 4, 23, 23), (64, 4, None, None), (61, 2, 31, 30)],
)
def test_layers_that_do_not_split_evenly(layers, stages, first, last):
    assert ends(layers, stages) == (first, last)


def test_each_count_of_nodes_is_shown_and_one_without_layouts_has_a_reason():
    asked = ["plan", "recipes/qwen3-32b-4n8g-tp4pp4.yaml", "--top", "2", "--json", "--nodes"]
    run = CliRunner().invoke(app, [*asked, "4,8"])
    nodes = [x["layout"]["nodes"] for x in json.loads(run.stdout)["layouts"]]
    assert run.exit_code == 0 and nodes == [4, 4, 8, 8]
    run = CliRunner().invoke(app, [*asked, "4,3"])
    assert run.exit_code == 1 and "divide" in json.loads(run.stdout)["none"]["3"]
    p, passes = of_recipe("qwen3-235b-a22b-16n8g-tp2pp8cp2ep16")
    found, reason = layouts(p, 4, passes, 1)
    assert not found and "GB" in reason


def test_the_cheapest_change():
    full = planned(EXAMPLE)
    assert full.trains and full.generates and remedy(full, accepts()) is None
    p = planned(EXAMPLE, **{EXPERT: 2})
    assert not p.trains
    change = remedy(p, accepts(**{EXPERT: 2}))
    assert change == {EXPERT: 8}  # 4 is too few, 16 crosses nodes
    assert planned(EXAMPLE, **({EXPERT: 2} | change)).trains
    tensor = {"policy.generation.vllm_cfg.tensor_parallel_size": 1}
    p = planned(EXAMPLE, **tensor)
    assert not p.generates
    change = remedy(p, accepts(**tensor))
    assert change is not None and planned(EXAMPLE, **change).generates


TENSOR = "policy.generation.vllm_cfg.tensor_parallel_size"


def test_generation_s_tp_is_raised_in_every_layout_where_its_cache_holds_nothing():
    """And is left as it is elsewhere."""
    alone = {TENSOR: 1}
    p = planned(EXAMPLE, **alone)
    assert not p.generates
    found, reason = layouts(p, 4, accepts(**alone), 3)
    assert found and not reason
    assert all(x.generates and 1 < x.run.layout.generation_tensor <= 8 for x in found)
    assert all(x.change[TENSOR] == x.run.layout.generation_tensor for x in found)
    kept, _ = layouts(planned(EXAMPLE), 4, accepts(), 3)
    assert kept and not any(TENSOR in x.change for x in kept)


def test_no_engine_spans_nodes_where_fewer_gpus_hold_it():
    """A 70B on nodes of four GPUs: TP 4 holds a sequence, TP 8 and 16 decode faster."""
    p = planned(EXAMPLE, **{TENSOR: 2, "cluster.gpus_per_node": 4, "cluster.num_nodes": 16})
    p = of(replace(p.run, model=table()["meta-llama/Llama-3.3-70B-Instruct"]), p.tokens)
    assert not p.generates
    cures = [x for n in (4, 8, 16) if (x := _with(p, {TENSOR: n})) and x.generates]
    assert min(cures, key=lambda x: x.step_seconds).run.layout.generation_tensor > 4
    change = _cheapest(p, attrgetter("generates"), [x.change for x in cures], lambda _: True)
    assert change == {TENSOR: 4}


@pytest.mark.parametrize(
    ("heads", "groups", "ranks", "splits"),
    [(40, 10, 2, 1), (40, 10, 4, 0), (40, 10, 8, 0), (64, 8, 16, 1), (64, 8, 6, 0), (14, 2, 4, 0)],
)
def test_heads_of_an_engine(heads, groups, ranks, splits):
    """vLLM's rule: query heads divide, key-value heads divide or are copied."""
    model = table()["Qwen/Qwen3-8B"]
    shaped = model.model_copy(update={"attention": Attention(heads, groups, 128, 128)})
    assert splits_heads(shaped, ranks) == bool(splits)


def test_the_host_is_no_remedy_where_another_is_faster():
    p, passes = of_recipe("qwen3-30b-a3b-4n8g-ep8", "cluster.num_nodes=1")
    assert not p.trains
    assert remedy(p, passes) == {f"{MEGATRON}.activation_checkpointing": True}
    plain = with_keys(p.run.plain, OFFLOADED)
    assert plan(plain, p.run.model, p.run.gpu).step_seconds > p.step_seconds + 30


def test_no_change_helps_a_model_on_one_gpu():
    alone = {"cluster.num_nodes": 1, "cluster.gpus_per_node": 1}
    p = planned("recipes/llm/performance/grpo-qwen3-235b-16n8g.yaml", **alone)
    assert remedy(p, lambda _: True) is None and not p.trains

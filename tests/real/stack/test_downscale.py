"""The small config of a run: what is kept in proportion, and that it is a config that passes."""

import json
from pathlib import Path

import nemo_rl
import pytest
from omegaconf import OmegaConf
from rehearsal import downscale, miniature, small_config

from nemo_algos import config as configs
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.release import read

MAIN = read(Path(nemo_rl.__path__[0]).parent)
RECIPES = [n for n in configs.names() if n.startswith("recipes/") and "/base/" not in n]
RECIPES = [n for n in RECIPES if "/cpu/" not in n] + ["nemo_rl.yaml", "single_controller.yaml"]
BASES = {  # of NeMo-RL main -> a word of the refusal, or nothing
    "grpo_math_1B.yaml": "",
    "grpo_math_8B_megatron.yaml": "",
    "grpo_math_70B_megatron.yaml": "",
    "grpo_math_qwen30ba3b_megatron.yaml": "",
    "grpo_multiple_datasets.yaml": "",
    "recipes/llm/grpo-qwen3-1.7b-1n4g-megatron-eagle3.yaml": "draft",
    "grpo_math_1B_sglang.yaml": "sglang",
    "grpo_math_8B_megatron_nixl.yaml": "refit_transport",
    "recipes/llm/grpo-moonlight-16ba3b-4n8g-megatron.yaml": "latent attention",
    "recipes/llm/grpo-moonlight-16b-automodel-1n8g-ep8.yaml": "experts",
    "vlm_grpo_3B.yaml": "",
    "vlm_grpo_3B_megatron.yaml": "",
    "audio_grpo_3B_megatron.yaml": "config.json",
    "recipes/llm/grpo-nano-v2-12b-1n8g-megatron.yaml": "recurrent",
}


def given(name: str, base: str = ""):
    """base: NeMo-RL's config, and other overrides behind it."""
    overrides = f"nemo_rl.config={base}".split() if base else []
    return configs.apply_overrides(configs.read(configs.find(name)), overrides)


def folded(name: str, folder: Path, base: str = "", ranks: int = 4, longest: int = 200):
    """The run, and the small one, which `check` has passed."""
    written = given(name, base)
    run, _ = judge(written, MAIN)
    rows = folder / "rows.jsonl"
    row = json.dumps({"problem": "1 + 1", "answer": "2"})
    rows.write_text(f"{row}\n" * 64)
    changes = [*downscale.changes(run, ranks, longest, folder), *small_config.stand_in(rows, run)]
    return run, small_config.write(run, written, changes, folder, folder)


def test_a_prompt_file_of_nemo_rls_is_found_from_any_folder(tmp_path):
    """data.default of the base config names it, and it goes below rows that stand in, too."""
    asked = tmp_path / "examples" / "prompts" / "gsm8k.txt"
    asked.parent.mkdir(parents=True)
    asked.touch()
    _, small = folded("nemo_rl.yaml", tmp_path, "gdpo_math_1B.yaml method.name=gdpo")
    assert small["data.default.system_prompt_file"] == str(asked)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_folds_to_a_config_that_passes(name, tmp_path):
    run, _ = judge(given(name), MAIN)
    values, _ = miniature.read_config(str(run["policy.model_name"]))
    if "deepseek-v3" in name:
        assert "latent" in str(miniature.refusal(values, run.layout.backend))
        return
    assert not (downscale.refusal(run) or miniature.refusal(values, run.layout.backend))
    run, small = folded(name, tmp_path)
    holds(run, small)


def holds(run, small) -> None:
    """What stays as it was, and what fits."""
    before, after = run.layout, small.layout
    assert after.backend == before.backend and after.colocated == before.colocated
    assert after.train_gpus <= 4 and after.generation_tensor == 1
    for name in ("tensor", "pipeline"):
        assert (getattr(after, name) > 1) == (getattr(before, name) > 1)
    rows = small["policy.train_global_batch_size"]
    assert rows % (after.data * small["policy.train_micro_batch_size"]) == 0
    updates = run.rollouts // run["policy.train_global_batch_size"]
    assert small.rollouts // rows == min(updates, downscale.UPDATES) and small.rollouts % rows == 0
    assert small["grpo.num_generations_per_prompt"] == min(
        4, run["grpo.num_generations_per_prompt"]
    )
    assert small.packing == run.packing
    assert small["grpo.async_grpo.enabled"] == run["grpo.async_grpo.enabled"]
    assert small["method"] == run["method"] and small.staleness == run.staleness


@pytest.mark.parametrize("base", BASES)
def test_nemo_rls_own_configs_fold_or_are_refused_by_name(base, tmp_path):
    run, _ = judge(given("nemo_rl.yaml", base), MAIN)
    values, _ = miniature.read_config(str(run["policy.model_name"]))
    reason = downscale.refusal(run) or miniature.refusal(values, run.layout.backend)
    assert (BASES[base] in str(reason)) if BASES[base] else reason is None
    if not reason:
        folded("nemo_rl.yaml", tmp_path, base)


@pytest.mark.parametrize(
    ("name", "ranks", "sizes"),
    [  # tensor, pipeline, context, expert, ranks of training
        ("recipes/llama3.3-70b-8n8g-tp4pp4.yaml", 4, (2, 2, 1, 1, 4)),
        ("recipes/llama3.3-70b-8n8g-tp4pp4.yaml", 2, (2, 1, 1, 1, 2)),
        ("recipes/llama3.3-70b-8n8g-tp4pp4.yaml", 1, (1, 1, 1, 1, 1)),
        ("recipes/qwen3-30b-a3b-4n8g-ep8.yaml", 4, (1, 1, 1, 2, 2)),
        ("recipes/qwen3-30b-a3b-4n8g-tp4cp8ep8-40k.yaml", 4, (2, 1, 2, 2, 4)),
        ("recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml", 4, (1, 1, 1, 1, 2)),
        ("recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml", 1, (1, 1, 1, 1, 1)),
    ],
)
def test_parallel_sizes_above_1_are_2_while_ranks_last(name, ranks, sizes, tmp_path):
    lay = folded(name, tmp_path, ranks=ranks)[1].layout
    assert (lay.tensor, lay.pipeline, lay.context, lay.expert, lay.train_gpus) == sizes


def test_what_is_given_up_is_named(tmp_path):
    run, _ = judge(given("recipes/llama3.3-70b-8n8g-tp4pp8-fp8.yaml"), MAIN)
    listed = {c.path: c for c in downscale.changes(run, 2, 200, tmp_path)}
    assert listed["policy.megatron_cfg.pipeline_model_parallel_size"].kind == "given up"
    assert listed["policy.megatron_cfg.tensor_model_parallel_size"].kind == "folded"
    assert listed["policy.megatron_cfg.fp8_cfg.enabled"].value is False
    assert listed["policy.generation.vllm_cfg.precision"].value == run["policy.precision"]
    assert all(c.reason and run[c.path] != c.value for c in listed.values())


def test_experts_on_dtensor_are_whole_for_transformers_cannot_part_them(tmp_path):
    base = "recipes/llm/grpo-moonlight-16b-automodel-1n8g-ep8.yaml"
    run, small = folded("nemo_rl.yaml", tmp_path, base)
    assert run.layout.expert == 8
    assert (small.layout.expert, small.layout.train_gpus) == (1, 2)
    listed = {c.path: c for c in downscale.changes(run, 4, 200, tmp_path)}
    assert listed["policy.dtensor_cfg.expert_parallel_size"].kind == "given up"


def test_the_single_controller_keeps_one_update_and_its_sampler(tmp_path):
    run, small = folded("single_controller.yaml", tmp_path)
    assert small.controlled and small.sampler == run.sampler
    assert small.rollouts == small["policy.train_global_batch_size"]


def test_a_long_prompt_is_whole_up_to_the_limit(tmp_path):
    name = "recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml"
    for longest, prompt in ((100, 101), (9000, downscale.PROMPT)):
        small = folded(name, tmp_path, longest=longest)[1]
        assert small["data.max_input_seq_length"] == prompt
        assert small["policy.max_total_sequence_length"] >= prompt + downscale.ANSWER


def test_the_policy_is_whole_in_the_small_file(tmp_path):
    """A merge over NeMo-RL's base would bring back what was given up."""
    folded("recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml", tmp_path)
    written = OmegaConf.load(tmp_path / small_config.NAME)
    assert written.policy._override_ is True
    assert written.policy.optimizer.kwargs.lr == 1e-6


def test_replayed_routes_are_given_up_because_a_cpu_records_none(tmp_path):
    base = "recipes/llm/grpo-qwen3-30ba3b-10n8g-megatron-cp2-r3-async.yaml"
    run, small = folded("nemo_rl.yaml", tmp_path, base)
    assert run["policy.router_replay.enabled"] and not small["policy.router_replay.enabled"]
    kinds = {c.path: c.kind for c in downscale.changes(run, 4, 200, tmp_path)}
    assert kinds["policy.router_replay.enabled"] == "given up"

"""Every recipe and method through NeMo-RL's own MasterConfig, on the versions of its header."""

import os
from pathlib import Path

import pytest
from asked_conflicts import conflicts
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
from omegaconf import OmegaConf

from nemo_algos import config
from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import versions
from nemo_algos.findings import ConfigError, at
from nemo_algos.preflight.check import launcher
from nemo_algos.preflight.check.layout import MEGATRON, VLLM
from nemo_algos.preflight.check.rule import CORRECTION
from nemo_algos.preflight.check.rules.fp8 import DIVISOR, FP8

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "configs" / "recipes"


def named(path):
    """The versions of the header."""
    return path.read_text().splitlines()[0].removeprefix("# NeMo-RL ").split(", ")


KIND = "v0.7.0" if os.environ["NEMO_RL_REF"] == "v0.7.0" else "main"  # as conftest.py's ref
METHODS = ("etr", "quatro", "erpo", "apmpo")
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml")) if KIND in named(path)}
RUNS = {  # a file without a method's name is for each of them
    run: path
    for name, path in RECIPES.items()
    for run in ([name] if name.startswith(METHODS) else [f"{m}-{name}" for m in METHODS])
}


@pytest.mark.parametrize("name", RUNS)
def test_it_is_a_config_of_nemo_rl(name):
    method = name.split("-")[0]
    written = config.apply_overrides(config.read(RUNS[name]), [f"method.name={method}"])
    master, algorithm, _, remarks, *_ = launcher.compose(written)
    assert {f.severity for f in remarks if "model_name" not in f.path} <= {"note"}, remarks
    assert algorithm.name == method
    assert master.checkpointing["checkpoint_dir"] == f"results/{name}"
    assert master.policy["train_global_batch_size"] * 4 <= (
        versions.get(master.grpo, "num_prompts_per_step")
        * versions.get(master.grpo, "num_generations_per_prompt")
    )
    validation = master.data["validation"]
    assert validation.get("repeat") == (8 if validation["dataset_name"] == "AIME2024" else None)


@pytest.mark.parametrize(("updates", "epochs"), [(8, 2), (20, 5)])
def test_quatros_stale_runs_pass_over_a_batch_again(updates, epochs):
    launch = launcher.compose(
        config.read(RECIPES[f"quatro-qwen2.5-math-1.5b-1n2g-fsdp-stale{updates}"])
    )
    batch = versions.get(launch.master_config.grpo, "num_prompts_per_step") * 8
    size = launch.master_config.policy["train_global_batch_size"]
    assert launch.update_epochs == epochs == updates * size // batch


def test_recipes_of_this_version(ref):
    assert sum(ref in named(path) for path in RECIPES.values()) == {"v0.7.0": 28, "main": 30}[ref]


def test_the_papers_problems_load_as_prompts_for_the_verifier(tmp_path):
    """data/math_train.jsonl's format through NeMo-RL's dataset, prompt and verifier."""
    from nemo_rl.data.datasets.response_datasets import load_response_dataset
    from nemo_rl.environments.math_environment import HFVerifyWorker

    file = tmp_path / "math_train.jsonl"
    file.write_text('{"problem": "1/2 + 1?", "answer": "\\\\frac{3}{2}", "level": "Level 3"}\n')
    master = launcher.compose(
        config.read(RECIPES["quatro-qwen2.5-math-1.5b-1n2g-fsdp"])
    ).master_config
    root = versions.EXAMPLES.parent
    prompt = root / master.data["default"]["prompt_file"]
    split = {**master.data["train"], "data_path": str(file), "prompt_file": str(prompt)}
    loaded = load_response_dataset({**master.data["default"], **split})
    question, answer = (message["content"] for message in loaded.dataset[0]["messages"])
    asked = loaded.task_spec.prompt.format(question)
    assert question in asked and "boxed{}" in asked
    verify = HFVerifyWorker.__ray_metadata__.modified_class().verify
    impl = master.env["math"]["math_verify_impl"]
    replies = ["so \\boxed{\\frac{3}{2}}", "so \\boxed{2}", "1"]
    assert verify(replies, [answer] * 3, math_verify_impl=impl) == [1.0, 0.0, 0.0]


def test_dapos_answers_are_read_by_its_verifier_alone():
    from nemo_rl.environments.math_environment import HFVerifyWorker

    master = launcher.compose(config.read(RECIPES["etr-qwen3-8b-base-1n8g-fsdp"])).master_config
    verify = HFVerifyWorker.__ray_metadata__.modified_class().verify
    impl = master.env["math"]["math_verify_impl"]
    replies = ["so\nAnswer: 34", "so \\boxed{34}", "Answer: 3"]
    assert verify(replies, ["34"] * 3, math_verify_impl=impl) == [1.0, 0.0, 0.0]


def test_geometrys_reward_is_the_boxed_answer_alone():
    from nemo_rl.environments.vlm_environment import VLMVerifyWorker

    name = "apmpo-qwen2.5-vl-3b-instruct-1n4g-fsdp"
    env = launcher.compose(config.read(RECIPES[name])).master_config.env["geometry3k"]
    worker = VLMVerifyWorker.__ray_metadata__.modified_class(env)
    thought, right = "<think>t</think>", "2 \\sqrt { 3 }"
    replies = [
        f"\\boxed{{{right}}}",
        f"{thought} \\boxed{{5}}",
        f"{thought} <answer>{right}</answer>",
    ]
    assert worker.verify(replies, [right] * 3) == [1.0, 0.0, 0.0]


def test_a_papers_other_programs_are_nemo_rls():
    from nemo_rl.algorithms.sft import MasterConfig
    from nemo_rl.utils import config as nemo_config

    root = Path(nemo_config.__file__).parents[2]
    nemo_config.register_omegaconf_resolvers()
    known = config.load(FOLDER.parents[1] / "papers" / "erpo.yaml")
    base = known["models"]["qwen2.5-3b"]["base"]
    program = [word.replace("{base}", base) for word in known["methods"]["sft"]["program"]]
    python, script, option, name, *words = program
    assert (python, option, (root / script).exists()) == ("python", "--config", True)
    made = nemo_config.parse_hydra_overrides(nemo_config.load_config(root / name), words)
    master = MasterConfig(**OmegaConf.to_container(made, resolve=True))
    assert master.policy["model_name"] == "Qwen/Qwen2.5-3B"
    assert master.sft.max_num_epochs == 3 and master.sft.val_period == 0
    assert master.data["train"]["output_key"] == "solution"
    assert master.checkpointing["model_save_format"] == "torch_save"
    assert master.policy["optimizer"]["kwargs"]["lr"] == 5e-6


# ---- FP8, on eight GPUs


def compose(name, *overrides):
    written = config.read(FOLDER.parent / name)
    keys = ["cluster.gpus_per_node=8", *overrides]
    return launcher.compose(config.apply_overrides(written, keys)).master_config


def test_the_hopper_block_trains_and_samples_in_fp8():
    sizes = [f"{MEGATRON}.tensor_model_parallel_size=2"]
    master = compose("fp8_hopper.yaml", *sizes)
    policy = master.policy
    megatron, vllm = policy["megatron_cfg"], policy["generation"]["vllm_cfg"]
    assert megatron["fp8_cfg"] == {
        "enabled": True,
        "fp8": "e4m3",
        "fp8_recipe": "blockwise",
        "fp8_param": False,
    }
    assert megatron["enabled"] and not policy["dtensor_cfg"]["enabled"]
    assert megatron["env_vars"] == {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
    assert megatron["optimizer"]["use_precision_aware_optimizer"] is False
    assert policy["make_sequence_length_divisible_by"] == 2
    assert policy["sequence_packing"]["enabled"] and policy["precision"] == "bfloat16"
    assert (vllm["precision"], vllm["use_deep_gemm"]) == ("fp8", True)
    assert master.loss_fn.use_importance_sampling_correction


def test_the_blackwell_block_trains_in_bf16_and_samples_in_mxfp8(ref):
    if ref == "v0.7.0":  # it would ignore is_mx
        with pytest.raises(ConfigError, match=rf"{VLLM}\.is_mx: unknown key"):
            compose("mxfp8_blackwell.yaml")
        return
    master = compose("mxfp8_blackwell.yaml")
    megatron, vllm = master.policy["megatron_cfg"], master.policy["generation"]["vllm_cfg"]
    assert megatron["enabled"] and not megatron["fp8_cfg"]["enabled"]
    assert not master.policy["dtensor_cfg"]["enabled"]
    assert (vllm["precision"], vllm["is_mx"]) == ("fp8", True)
    assert vllm["quantization_ignored_layer_kws"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert master.loss_fn.use_importance_sampling_correction


def test_no_fp8_recipe_of_nemo_rl_is_refused():
    register_omegaconf_resolvers()
    recipes = sorted((versions.EXAMPLES / "configs").rglob("grpo*fp8*.yaml"))
    plain = [config.resolve(load_config(path)) for path in recipes]
    assert len(plain) >= 8
    assert sum(bool(at(p, f"{FP8}.enabled")) for p in plain) >= 5
    for one in plain:
        found = conflicts(one, {}, build("grpo"))
        assert not [f for f in found if f.path.startswith((FP8, VLLM, CORRECTION, DIVISOR))]

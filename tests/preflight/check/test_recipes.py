"""Every recipe means what its name and header say, over NeMo-RL's own configs as shipped here.

A file without a method's name is walked with each of the four.
"""

import functools
import re

import pytest
from omegaconf import OmegaConf
from recipe_files import BASES, FILES
from releases import MAIN

from nemo_algos import config
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.findings import at
from nemo_algos.lab.evals.benchmarks import BENCHMARKS
from nemo_algos.preflight.check import known_models
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.layout import layout

NAME = re.compile(r"(?P<method>[a-z]+)-(?P<model>.+)-(?P<nodes>\d+)n(?P<gpus>\d+)g-(?P<layout>.+)")
SIZES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
WORDS = {
    "fsdp": ("policy.dtensor_cfg.enabled", True),
    "lora": ("policy.dtensor_cfg.lora_cfg.enabled", True),
    "async": ("grpo.async_grpo.enabled", True),
    "fp8": ("policy.megatron_cfg.fp8_cfg.enabled", True),
    "mxfp8": ("policy.generation.vllm_cfg.is_mx", True),
    "40k": ("policy.max_total_sequence_length", 40960),
}
# the verifier: the prompt file and the datasets whose prompts ask for what it reads
PICTURES = {"geometry3k"}  # images, with NeMo-RL's own environment
ANSWERS = {
    "dapo_math_verify": (None, {"DAPOMath17K", "DAPOMathAIME2024"}),
    "hf_math_verify": ("examples/prompts/cot.txt", {"ResponseDataset", "AIME2024"}),
    "geo3k": ("examples/prompts/cot.txt", PICTURES),  # reads \\boxed{} too
    "code": (None, {"ResponseDataset"}),  # rows of `nemo-algos export problems`
    "sql": (None, {"ResponseDataset"}),
}
LR, BATCH = "policy.optimizer.kwargs.lr", "policy.train_global_batch_size"
ALL_PAPERS = {
    "loss_fn.reference_policy_kl_penalty": 0.001,
    "grpo.num_generations_per_prompt": 8,
    "policy.generation.temperature": 1.0,
    "policy.optimizer.name": "torch.optim.AdamW",
    "cluster.num_nodes": 1,
}
# what the papers state, of which much is NeMo-RL's own value and in no file of ours
PAPERS = {
    "etr": {
        "grpo.num_prompts_per_step": 64,
        LR: 1e-6,
        "policy.max_grad_norm": 1.0,
        "policy.generation.top_p": 1.0,
        "policy.generation.max_new_tokens": 8192,
        "data.train.dataset_name": "DAPOMath17K",
        "cluster.gpus_per_node": 8,
    },
    "quatro": {
        "grpo.num_prompts_per_step": 256,
        BATCH: 64 * 8,
        "policy.train_micro_batch_size": 8,
        LR: 1e-6,
        "policy.optimizer.kwargs.weight_decay": 0.0,
        "policy.max_grad_norm": 1.0,
        "policy.generation.max_new_tokens": 1024,
        "policy.generation.vllm_cfg.gpu_memory_utilization": 0.8,
        "cluster.gpus_per_node": 2,
    },
    "erpo": {
        BATCH: 16,
        LR: 5e-6,
        "policy.optimizer.kwargs.weight_decay": 0.001,
        "policy.dtensor_cfg.lora_cfg.dim": 32,
        "policy.dtensor_cfg.lora_cfg.alpha": 64,
        "policy.dtensor_cfg.lora_cfg.target_modules": ["*_proj"],  # all linear layers but lm_head
        "policy.max_total_sequence_length": 2048,
        "grpo.max_num_epochs": 1,
        "cluster.gpus_per_node": 1,
    },
    "apmpo": {
        "grpo.num_prompts_per_step": 512,
        "grpo.max_num_steps": 400,
        LR: 1e-6,
        "cluster.gpus_per_node": 4,
    },
}


def method_of(name):
    return name.partition("-")[0]


def runs(file):
    """The names of the runs that a file is made for."""
    return [file] if method_of(file) in PAPERS else [f"{method}-{file}" for method in PAPERS]


RECIPES = {run: path for file, path in FILES.items() for run in runs(file)}


each = pytest.mark.parametrize("name", RECIPES)


@functools.cache
def plain_of(name):
    written = config.apply_overrides(config.read(RECIPES[name]), [f"method.name={method_of(name)}"])
    return compose(written, MAIN).plain


@functools.cache
def split(path):
    """What the file itself writes, and its parents' paths."""
    own = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(own, dict)
    names = own.pop("defaults", [])
    names = names if isinstance(names, list) else [names]
    return own, tuple((path.parent / name).resolve() for name in names)


def ancestors(path):
    return {a for parent in split(path)[1] for a in (parent, *ancestors(parent))}


def leaves(section, prefix=""):
    for key, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def over(base, own):
    """own's values over the base's, as they are written."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return base | {k: over(base.get(k), v) for k, v in own.items()}


@functools.cache
def written(path):
    """The file over its parents."""
    own, parents = split(path)
    return functools.reduce(over, [*map(written, parents), own], {})


@each
def test_the_name_says_what_it_is(name):
    said, plain = NAME.fullmatch(name), plain_of(name)
    assert said, "<method>-<model>-<nodes>n<gpus>g-<layout>.yaml"
    assert plain["method"]["name"] == said["method"]
    letters = re.sub(r"[^a-z0-9]", "", plain["policy"]["model_name"].split("/")[-1].lower())
    assert letters.startswith(re.sub(r"[^a-z0-9]", "", said["model"]))
    cluster = plain["cluster"]
    assert (cluster["num_nodes"], cluster["gpus_per_node"]) == (int(said[3]), int(said[4]))
    assert plain["logger"]["wandb"]["name"] == name
    assert plain["checkpointing"]["checkpoint_dir"] == f"results/{name}"


@each
def test_the_layout_of_the_name_is_the_configs(name):
    said, plain = name.split("g-")[-1], plain_of(name)
    lies = layout(plain)
    sizes = dict(re.findall(r"(tp|pp|cp|ep)(\d+)", said))
    assert {k: getattr(lies, v) for k, v in SIZES.items()} == {
        k: int(sizes.get(k, 1)) for k in SIZES
    }
    words = set(said.split("-"))
    for word in WORDS.keys() - {"fsdp"}:
        path, value = WORDS[word]
        assert (at(plain, path) == value) == (word in words), word
    assert (lies.backend == "dtensor") == bool(words & {"fsdp", "lora"})


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - FILES.keys()))
def test_a_layout_is_sound_with_every_method(name):
    """What has a method of its own, test_check judges."""
    found = check(str(RECIPES[name]), [f"method.name={method_of(name)}"], MAIN)
    assert not [f for f in found if f.severity != "note"]


@each
def test_updates_per_batch(name):
    plain = plain_of(name)
    grpo, batch = plain["grpo"], plain["policy"]["train_global_batch_size"]
    rollouts = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    assert rollouts % batch == 0 and rollouts // batch >= 4
    per_rank = layout(plain).data * plain["policy"]["train_micro_batch_size"]
    assert batch % per_rank == 0


@each
def test_the_gpus_divide(name):
    plain = plain_of(name)
    policy, lies = plain["policy"], layout(plain)
    assert lies.train_gpus % lies.model_ranks == lies.train_gpus % lies.expert_ranks == 0
    assert lies.generation_gpus % (lies.generation_tensor * lies.generation_pipeline) == 0
    slices = (2 * lies.context if lies.context > 1 else 1) * (
        lies.tensor if lies.sequence_parallel else 1
    )
    assert policy["make_sequence_length_divisible_by"] % slices == 0
    if lies.tensor >= 4:  # NeMo-RL's rule
        assert policy["train_micro_batch_size"] == policy["logprob_batch_size"]


@each
def test_checkpoints_are_in_the_converters_format(name):
    assert plain_of(name)["checkpointing"]["model_save_format"] == "torch_save"


@each
def test_the_model_holds_the_sequence(name):
    policy = plain_of(name)["policy"]
    model = known_models.model(policy["model_name"])
    assert policy["generation"]["max_new_tokens"] <= policy["max_total_sequence_length"]
    assert policy["max_total_sequence_length"] <= model.max_position_embeddings
    assert model.attention.heads % layout(plain_of(name)).tensor == 0


@each
def test_the_prompt_asks_for_what_the_verifier_reads(name):
    plain = plain_of(name)
    data, env = plain["data"], plain["env"]
    judge = env[data["default"]["env_name"]]
    (pictured,) = judge.get("reward_functions", [{}])
    reads = judge.get("verifier") or pictured.get("name") or judge["math_verify_impl"]
    prompt, datasets = ANSWERS[reads]
    assert data["default"]["prompt_file"] == prompt
    assert {data["train"]["dataset_name"], data["validation"]["dataset_name"]} == datasets
    kind = "vlm" if datasets is PICTURES else "math"
    assert data["default"]["processor"] == f"{kind}_hf_data_processor"


@pytest.mark.parametrize(
    ("name", "benchmarks"),
    [
        ("quatro-qwen2.5-coder-1.5b-1n2g-fsdp", ("apps", "humaneval")),
        ("apmpo-qwen2.5-coder-3b-instruct-1n4g-fsdp", ("bird",)),
    ],
)
def test_a_program_or_query_has_the_time_that_its_benchmark_gives(name, benchmarks):
    plain = plain_of(name)
    judge = plain["env"][plain["data"]["default"]["env_name"]]
    known = [BENCHMARKS[benchmark] for benchmark in benchmarks]
    assert {b.verifier for b in known} == {judge["verifier"]}
    assert max(b.deadline for b in known) == judge["deadline"]


@each
def test_what_a_paper_states(name):
    parents = {path.stem for path in ancestors(RECIPES[name])}
    family = next((f for f in PAPERS if f"paper_{f}" in parents), None)
    if family is None:
        return
    own = set(leaves(split(RECIPES[name])[0]))
    stated = {k: v for k, v in (ALL_PAPERS | PAPERS[family]).items() if k not in own}
    plain = plain_of(name)
    assert {path: at(plain, path) for path in stated} == stated


def test_a_layout_is_for_every_method():
    """Above 8B no file is of one method, and the method is in the names of its folders."""
    scale = {file for file, path in FILES.items() if BASES["scale"].resolve() in ancestors(path)}
    assert len(scale) == 10 and not {method_of(file) for file in scale} & METHODS.keys()
    for file in scale:
        assert at(written(FILES[file]), "logger.wandb.name") == f"${{method.name}}-{file}"


def test_fp8_over_a_recipe_keeps_its_model_and_layout(tmp_path):
    file = tmp_path / "mine.yaml"
    recipe = "recipes/qwen3-30b-a3b-4n8g-ep8.yaml"
    file.write_text(f"defaults: [{recipe}, recipes/base/fp8.yaml]")
    plain = compose(config.read(config.find(recipe)), MAIN).plain
    found = compose(config.read(file), MAIN).plain
    megatron = found["policy"]["megatron_cfg"]
    assert megatron["fp8_cfg"]["enabled"] and megatron["expert_model_parallel_size"] == 8
    assert found["policy"]["generation"]["vllm_cfg"]["precision"] == "fp8"
    for key in ("cluster", "grpo", "data"):
        assert found[key] == plain[key]
    assert found["policy"]["model_name"] == plain["policy"]["model_name"]

"""Each rule of engines/local/schema.py, with the path and the message of its error."""

from pathlib import Path

import pytest
from says import Says

from nemo_algos import config
from nemo_algos.engines.local.manifest import foreign
from nemo_algos.engines.local.schema import LocalConfig, Milestones, TorchClass
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.preflight.check.local.judge import parse

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
MODEL = "policy.model_name"
MATH = {
    "data": {"task": "math", "train": {"data_path": "train.jsonl"}},
    "policy": {"model_name": "some/model"},
}


def merged(into, changes):
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(into.get(key), dict)
        into[key] = merged(into[key], value) if nested else value
    return into


def check(*changes):
    """grpo.yaml with changes, each a nested dictionary or (path, value)."""
    plain = config.load(CONFIGS / "grpo.yaml")
    for change in changes:
        if isinstance(change, tuple):
            path, value = change
            for key in reversed(path.split(".")):
                value = {key: value}
            change = value
        merged(plain, change)
    return parse(plain)[0]


def problems(*changes):
    with pytest.raises(ConfigError) as error:
        check(*changes)
    return [(p.path, p.message) for p in error.value.findings]


def test_a_scheduler_is_a_component_or_milestones():
    step = {"name": "torch.optim.lr_scheduler.StepLR", "kwargs": {"step_size": 3}}
    scheduler = check(("policy.scheduler", [step, step, {"milestones": [7]}])).policy.scheduler
    assert [type(s) for s in scheduler] == [TorchClass, TorchClass, Milestones]
    assert scheduler[2].milestones == [7] and scheduler[1].kwargs == {"step_size": 3}
    found = problems(("policy.scheduler", [{"milestone": [7]}]))
    assert any(p.startswith("policy.scheduler.0") for p, _ in found)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        (
            [("data.task", "math"), ("policy.model_name", "some/model")],
            "data.train",
            "math data.train.data_path",
        ),
        *(
            ([(f"data.{split}", {"data_path": "x.jsonl"})], "data.task", "countdown data.task math")
            for split in ("train", "validation")
        ),
        ([MATH, ("data.prompt", "Solve: {question}")], "data.prompt", "{problem}"),
        (
            [("policy.model_name", "some/model")],
            "policy.model_name",
            "some/model data.task=countdown",
        ),
        (
            [MATH, ("policy.model_name", "countdown-tiny")],
            "policy.model_name",
            "countdown-tiny data.task=math",
        ),
        *(
            (
                [("policy.train_global_batch_size", size)],
                "policy.train_global_batch_size",
                f"{size} num_prompts_per_step num_generations_per_prompt 512",
            )
            for size in (100, 1024)
        ),
        (
            [("grpo.num_generations_per_prompt", 1), ("grpo.num_prompts_per_step", 256)],
            "grpo.num_generations_per_prompt",
            "advantage 8",
        ),
        ([("data.numbers", 4)], "policy.generation.max_new_tokens", "data.numbers=4 18"),
        ([MATH, ("policy.shape", {"heads": 2})], "policy.shape", "countdown-tiny some/model"),
        ([("policy.shape", {"width": 36, "heads": 4})], "policy.shape.heads", "4 36"),
        (
            [(MODEL, "countdown-tiny-moe"), ("policy.shape", {"heads": 2})],
            "policy.shape",
            "countdown-tiny countdown-tiny-moe",
        ),
        (
            [("policy.router_replay.enabled", True)],
            "policy.router_replay.enabled",
            "countdown-tiny policy.model_name countdown-tiny-moe",
        ),
    ],
)
def test_contradictions(changes, path, message):
    assert problems(*changes) == [(path, Says(message))]


POSITIVE = [
    *(f"grpo.{k}" for k in ("num_prompts_per_step", "num_generations_per_prompt")),
    *(f"grpo.{k}" for k in ("max_num_steps", "num_update_epochs", "max_val_samples")),
    *(f"policy.train_{k}_batch_size" for k in ("global", "micro")),
    *(f"policy.{k}" for k in ("generation_batch_size", "max_grad_norm", "threads")),
    *(f"policy.generation.{k}" for k in ("max_new_tokens", "temperature")),
    "policy.dynamic_batching.train_mb_tokens",
    *(f"policy.shape.{k}" for k in ("width", "layers", "heads", "hidden")),
    *(f"data.{k}" for k in ("max_input_seq_length", "verifier_workers")),
    *(f"checkpointing.{k}" for k in ("save_period", "keep_top_k")),
]


@pytest.mark.parametrize("path", POSITIVE)
def test_what_must_be_positive(path):
    for value in (0, -1):
        found = problems((path, value))
        assert found == [(path, Says(f"0 {value}"))]


PRINTED = "logger.num_val_samples_to_print"


@pytest.mark.parametrize(
    "path", ["grpo.seed", "grpo.val_samples_per_prompt", "grpo.val_period", PRINTED]
)
def test_what_must_not_be_negative(path):
    assert check((path, 0))
    (found,) = problems((path, -1))
    assert found == (path, Says("0 -1"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("engine", "vllm", "'vllm' local nemo_rl"),
        ("policy.precision", "float16", "'auto' 'float32' 'bfloat16' 'float16'"),
        ("policy.device", "tpu", "'cpu' 'cuda' 'mps' 'auto' 'tpu'"),
        ("data.task", "chess", "'chess' countdown math package.module:NAME"),
        ("data.numbers", 1, "2 1"),
        ("data.numbers", 7, "6 7"),
        ("grpo.max_num_steps", 1.5, "1.5"),
        ("policy.max_grad_norm", float("nan"), "nan"),
        ("policy.generation.temperature", float("inf"), "inf"),
        ("policy.generation", None, "null"),
        ("policy.generaton", {}, "generation"),
        ("policy.generation.val_top_k", 1, "NeMo-RL"),
        ("policy.generation.top_k", 0, "0"),
        ("policy.generation.min_p", 1.5, "1"),
        ("policy.optimizer.lr", 1.0, "kwargs name"),
        ("data.train.path", "x", "key"),
        ("grpo.num_prompt_per_step", 8, "num_prompts_per_step"),
        ("checkpointing.save_perod", 8, "save_period"),
        ("logger.swanlab_enabled", True, "NeMo-RL"),
        ("grop", {}, "grpo"),
        ("grpo.temperature", 0.7, "did policy.generation.temperature"),
        ("loss_fn.aggregation", "token", "did method.aggregation"),
        ("aggregation", "token", "did method.aggregation"),
    ],
)
def test_wrong_values_and_unknown_keys(path, value, message):
    found = dict(problems((path, value)))
    assert found[path] == Says(message), found


@pytest.mark.parametrize(
    "path", ["method", "grpo", "policy", "logger", "policy.model_name", "grpo.max_num_steps"]
)
def test_what_cannot_be_left_out(path):
    plain = config.load(CONFIGS / "grpo.yaml")
    *above, last = path.split(".")
    section = plain
    for key in above:
        section = section[key]
    del section[last]
    with pytest.raises(ConfigError) as error:
        parse(plain)
    assert Finding(path, Says("missing")) in error.value.findings


def test_what_contradicts_is_told_beside_what_is_wrong_by_itself():
    """Rules that read none of the wrong keys are asked, whatever else is wrong."""
    found = problems(
        ("policy.generation.support_replay", True),
        ("policy.device", "tpu"),
        ("policy.train_global_batch_size", 100),
        ("data.numbers", 99),
        ("data.prompt", "x"),
        ("grpo.num_generations_per_prompt", 1),
        ("method.macroo", 1),
        ("logger.wandb", True),
    )
    assert sorted(path for path, _ in found) == [
        "data.numbers",
        "data.prompt",
        "grpo.num_generations_per_prompt",
        "logger.wandb",
        "method.macroo",
        "policy.device",
        "policy.generation.support_replay",
        "policy.train_global_batch_size",
    ]


def test_a_wrong_value_makes_no_other_key_wrong():
    assert [p for p, _ in problems(("grpo.num_prompts_per_step", 0))] == [
        "grpo.num_prompts_per_step"
    ]
    assert [p for p, _ in problems(MATH, ("data.task", 3))] == ["data.task"]
    assert [p for p, _ in problems(("data", 3), ("grpo", []))] == ["grpo", "data"]


SCHEMA = LocalConfig.model_json_schema()
TEXTS = {
    "data.prompt",
    "data.system_prompt",
    "data.answer_prefix",
    "policy.tokenizer.chat_template",
}
SERVERS = {"logger.mlflow.tracking_uri", "logger.wandb.entity"}
CODE = {"data.verifier", "data.rewards.x.function", "policy.optimizer.name"}
CODE |= {"policy.scheduler.0.name"}


def texts(shape, path=""):
    """The paths of keys that take a text, or anything."""
    if "$ref" in shape:
        shape = SCHEMA["$defs"][shape["$ref"].rpartition("/")[2]]
    for kind in shape.get("anyOf", ()):
        yield from texts(kind, path)
    for key, below in shape.get("properties", {}).items():
        yield from texts(below, f"{path}.{key}")
    for key, below in (("x", "additionalProperties"), ("0", "items")):
        if isinstance(inner := shape.get(below), (dict, bool)) and inner:
            yield from texts({} if inner is True else inner, f"{path}.{key}")
    if shape.get("type", "string") == "string" and not shape.keys() & {"anyOf", "enum", "const"}:
        yield path


PATHS = {path.removeprefix(".") for path in texts(SCHEMA)}


def asked(value):
    def config(path):
        inner = value
        for key in reversed(path.split(".")):
            inner = [inner] if key == "0" else {key: inner}
        return inner

    return {path for path in PATHS if foreign(config(path)) == {path: value}}


def test_every_text_of_the_schema_is_walked():
    assert TEXTS | SERVERS | CODE | {"method.x", "policy.optimizer.kwargs.x"} < PATHS
    assert {"policy.model_name", "data.train.data_path", "logger.log_dir"} < PATHS


@pytest.mark.parametrize("address", ["http://evil.example/x", "s3://evil/x\ny", "databricks://p"])
def test_an_address_is_asked_about_but_in_what_is_said_to_the_model(address):
    assert PATHS - asked(address) == TEXTS


def test_code_and_those_who_are_told_are_asked_about_whatever_they_are():
    assert asked("evil") == SERVERS | CODE
    assert asked("os:system") == SERVERS | CODE | {"data.task", "method.x"}
    assert asked("${logger.log_dir}") == PATHS

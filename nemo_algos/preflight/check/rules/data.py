"""Prompts, verifiers, files of data, and NeMo Gym.

A prompt and a verifier that disagree score 0 in silence.
"""

import os.path
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.derived_config import GYM, is_vlm, uses_gym
from nemo_algos.findings import Finding, at, did_you_mean, sections_of
from nemo_algos.preflight.check.keys import FOREIGN, SPLITS
from nemo_algos.preflight.check.known_models import config_of, configs
from nemo_algos.preflight.check.layout import MCORE, VLLM
from nemo_algos.preflight.check.rule import Preflight, error, errors, note, warning
from nemo_algos.preflight.check.rules.generation import GENERATION
from nemo_algos.preflight.check.training_rows import datasets
from nemo_algos.preflight.forecast.names import HELD_OUT, ignores
from nemo_algos.preflight.forecast.sampling import asked

FILES = (".arrow", ".csv", ".json", ".jsonl", ".parquet", ".txt")  # what NeMo-RL takes for a file
OF_PARTS = "math_multi_reward"  # its rewards are of tags: <think>, <answer>
MATH = ("math", "math_default", OF_PARTS)
VERIFIERS = {"hf_math_verify": "boxed", "dapo_math_verify": "Answer:"}  # what they look for
# what the reward functions of images look for
TAGS = {"exact_alnum": "<answer>", "math_expr": "<answer>", "bbox_giou": "<answer>"}
TAGS |= {"format": "<answer>", "geo3k": "boxed"}
# keys that NeMo-RL's types of `data` have for SFT, and those of a data set for DPO
OF_SFT = ("add_bos", "add_eos", "add_generation_prompt", "add_system_prompt")
OF_PAIRS = ("chosen_key", "min_generation_tokens", "prompt_key", "rejected_key")
PROCESSOR = "nemo_gym_data_processor"  # the one that gives rows of Gym
CONFIGS = f"{GYM}.config_paths"
MODEL = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")  # of an architecture
PENALTIES = ("grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage")


def environment(run: Preflight, data: Mapping[str, Any]) -> Any:
    """The name of NeMo-RL's environment that judges a dataset: of images it is always vlm."""
    if is_vlm(run["data"]):
        return "vlm"
    return data.get("env_name")


def environments(run: Preflight) -> Iterator[Finding]:
    """A dataset's environment is configured, and one's own environment is a dataset's."""
    known = sorted(run["env"] or {})
    named = {str(data.get("env_name")): path for path, data in datasets(run)}
    own = run.written.get("env")
    if not isinstance(own, Mapping):
        own = {}
    for name in own.keys() - {*named, *run.nemo_rl.environments, *FOREIGN}:
        if isinstance(own[name], Mapping):
            near = did_you_mean(str(name), sorted({*named, *run.nemo_rl.environments}))
            yield error(
                f"env.{name}",
                f"no dataset uses this environment{near}. Set `data.default.env_name: {name}`, or "
                "remove the section.",
            )
    for path, data in datasets(run):
        name = data.get("env_name")
        if name is not None and name not in known:
            yield error(
                run.written_at(path, "env_name"),
                f"env has no section {name}{did_you_mean(str(name), known)}. Name another "
                "environment, or add it.",
            )


def own_environment(run: Preflight) -> Iterator[Finding]:
    """A data set with an environment of its name is judged by that."""
    for path, data in datasets(run):
        own = data.get("dataset_name")
        key = run.written_at(path, "env_name")
        other = data.get("env_name") not in (own, None)
        if own in (run["env"] or {}) and other and at(run.written, key) is not None:
            yield warning(
                key,
                f"{own} is judged by {data['env_name']}, though env has a section {own}. Set it to "
                f"{own}, unless you mean the other.",
            )


def images(run: Preflight) -> Iterator[Finding]:
    """What NeMo-RL's own script for prompts with images asserts, or takes no notice of."""
    trainer = "NeMo-RL trains on images with grpo_train only"
    takes_images = run.nemo_rl.facts["asynchronous GRPO takes images"]
    if not is_vlm(run["data"]):
        return
    yield from errors(
        (
            run.vllm and run[f"{VLLM}.skip_tokenizer_init"] is not False,
            f"{VLLM}.skip_tokenizer_init",
            "prompts with images need vLLM's tokenizer. Set it to false.",
        ),
        (
            run["data_plane.enabled"],
            "data_plane.enabled",
            f"{trainer}, which does not use the data plane. Set it to false.",
        ),
        (
            run["grpo.async_grpo.enabled"] and not takes_images,
            "grpo.async_grpo.enabled",
            f"{trainer}. Set it to false.",
        ),
    )


def verifiers(run: Preflight) -> Iterator[Finding]:
    """The prompt asks for the format that the verifier reads: else all score 0."""
    for path, data in datasets(run):
        env = f"env.{data.get('env_name')}"
        found = asked(run, data)
        if found is None:
            continue
        for function in sections_of(run[f"{env}.reward_functions"]):
            form = TAGS.get(str(function.get("name")))
            if not data.get("prompt_file") or function.get("kwargs"):
                continue  # the rows may ask for it themselves; arguments name other tags
            if form and form not in found:
                yield warning(
                    run.written_at(path, "prompt_file"),
                    f"the reward function {function['name']} reads `{form}`, which the prompts do "
                    "not ask for. Responses without it score 0. Name a prompt file with it.",
                )
                break
        if environment(run, data) not in MATH:
            continue
        key = "math_verify_impl"
        wanted = VERIFIERS.get(run[f"{env}.{key}"], "boxed")
        cure = "Change it, or change"
        for name, form in VERIFIERS.items():
            if form in found:
                cure = f"Set it to {name}, or change"
        if run[f"{env}.verifier_type"] not in (None, "math"):
            key = "verifier_type"
            wanted = "Answer:"
            cure = "Change it, or change"
        if data.get("env_name") == OF_PARTS:
            wanted = "<answer>"
            cure = "Change"
        if wanted not in found:
            form = " and ".join(found) or "no answer format"
            what = f"the verifier reads `{wanted}`, but the prompts of {path} ask for {form}"
            say = error if wanted == "Answer:" else warning
            lost = "Responses in that format score 0"
            if wanted == "boxed" and "<answer>" not in found:
                say = note if found else warning
                lost = "Outside of a box it reads numbers, and formulas between dollar signs alone"
            yield say(f"{env}.{key}", f"{what}. {lost}. {cure} `data.default.prompt_file`.")


def unread_keys(run: Preflight) -> Iterator[Finding]:
    """Keys of NeMo-RL's other trainers, which GRPO takes and does not read."""
    section = run.written.get("data")
    if not isinstance(section, Mapping):
        return
    found = []
    for key in section:
        if key in OF_SFT:
            found.append(f"data.{key}")
    for split in SPLITS:
        for one in sections_of(section.get(split)):
            for key in OF_PAIRS:
                if key in one:
                    found.append(f"data.{split}.{key}")
    for path in dict.fromkeys(found):
        yield warning(path, "GRPO does not read this key of NeMo-RL's other trainers. Remove it.")


def files(run: Preflight) -> Iterator[Finding]:
    """Files are there; relative ones may lie in the run's folder, NeMo-RL's prompts in its own."""
    for path, data in datasets(run):
        for key in ("data_path", "prompt_file", "system_prompt_file"):
            name = Path(str(data.get(key) or "."))
            theirs = name.parent.as_posix() == "examples/prompts"
            own = theirs and name.name in run.nemo_rl.prompts
            if name.suffix in FILES and not own and not os.path.exists(name):
                say = warning if theirs or name.is_absolute() else note
                yield say(
                    run.written_at(path, key),
                    f"file {name} not found on this machine. Correct the path, or create the file.",
                )


def validation(run: Preflight) -> Iterator[Finding]:
    """Validation needs data of its own or a share of training's, in whole batches."""
    validates = (
        (run["grpo.val_period"] or 0) > 0 or run["grpo.val_at_start"] or run["grpo.val_at_end"]
    )
    sharing = [data for _, data in datasets(run) if data.get(HELD_OUT)]
    deaf = [str(data["dataset_name"]) for data in sharing if ignores(run, data, HELD_OUT)]
    whose = f": {deaf[0]} takes no `{HELD_OUT}`" if deaf else ""
    samples = run["grpo.max_val_samples"]
    batch = run["grpo.val_batch_size"]
    yield from errors(
        (
            validates and not run["data.validation"] and len(sharing) == len(deaf),
            "data.validation",
            f"grpo is set to validate, but there is no validation data{whose}. Give it a data set "
            "as in `data.train`, or set `grpo.val_period: 0`.",
        ),
        (
            0 < (samples or 0) < (batch or 0),
            "grpo.val_batch_size",
            f"{batch} exceeds `grpo.max_val_samples: {samples}`. No batch would be validated, and "
            f"the score would be 0. Set it to {samples} or less.",
        ),
        (
            validates and samples is None and not uses_gym(run["env"]) and not run.controlled,
            "grpo.max_val_samples",
            f"without NeMo Gym it must be a number: null stops the first validation. Set it to a "
            f"multiple of {batch}.",
        ),
    )


def gym(run: Preflight) -> Iterator[Finding]:
    """NeMo Gym's servers find an engine that answers over HTTP, and rows of their own."""
    if not uses_gym(run["env"]):
        return
    paths = run[CONFIGS]
    asked_over_http = run[f"{GENERATION}.backend"] == "megatron"
    yield from errors(
        (
            asked_over_http and not run[f"{MCORE}.expose_http_server"],
            f"{MCORE}.expose_http_server",
            "NeMo Gym's servers ask the engine over HTTP. Set it to true.",
        ),
        (
            not paths,
            CONFIGS,
            f"they name NeMo Gym's servers. List {MODEL} and your environment's.",
        ),
        (
            run["grpo.max_val_samples"] is not None,
            "grpo.max_val_samples",
            "NeMo Gym validates on the whole data set. Set it to null.",
        ),
        (
            run[f"{GYM}.is_trajectory_collection"],
            f"{GYM}.is_trajectory_collection",
            "NeMo-RL would write down rollouts, and train nothing. Set it to false, or run "
            "NeMo-RL's run_grpo_nemo_gym.py.",
        ),
    )
    if paths and not any(str(path).endswith("_for_training.yaml") for path in paths):
        yield warning(
            CONFIGS,
            "servers of another model than `..._for_training.yaml` return no tokens to train on. "
            f"List {MODEL}, unless yours return them.",
        )
    for path, data in datasets(run):
        if data.get("processor") != PROCESSOR:
            yield error(
                f"{path}.processor",
                f"NeMo Gym takes rows of its own, which {data.get('processor')} does not give. "
                f"Set it to {PROCESSOR}.",
            )
    for key in ("top_k", "val_top_k"):
        if run[f"{GENERATION}.{key}"]:
            yield error(f"{GENERATION}.{key}", "NeMo Gym's requests have no top_k. Set it to null.")


def penalised_messages(run: Preflight) -> Iterator[Finding]:
    """A penalty of a message needs one who marks messages, and an advantage for each token."""
    for path in PENALTIES:
        if run[path] is None:
            continue
        if not uses_gym(run["env"]):
            yield error(
                path, "only NeMo Gym marks such messages, and it does not run here. Set it to null."
            )
        elif run["data_plane.enabled"]:
            yield error(
                path,
                "NeMo-RL penalises no message where tensors travel through the data plane. Set it "
                "to null, or set `data_plane.enabled: false`.",
            )
        elif run.algorithm and run.algorithm.one_advantage:
            yield error(
                path,
                f"{run.algorithm.name} needs one advantage for all tokens of a response. Set it "
                "to null, or choose a method with a token ratio (grpo, etr, cispo).",
            )


def reward_models(run: Preflight) -> Iterator[Finding]:
    """A reward model has learned to score: on top of another model NeMo-RL makes a new head."""
    name = str(run["env.reward_model.model_name"])
    kinds = config_of(name).get("architectures") or ()
    if name in configs() or any(str(kind).endswith(GENERATES) for kind in kinds):
        yield warning(
            "env.reward_model.model_name",
            f"{name} is a language model without a head that scores. NeMo-RL gives it a new one, "
            "so rewards are a random projection. Name a model trained as a reward model, such as "
            "Skywork/Skywork-Reward-V2-Qwen3-0.6B.",
        )

"""The verifier environment: rewards, counts, NeMo-RL's own metrics.

And the way of a recipe from its data file to the reward in a real Ray.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cpu_task
import local_ray
import psutil
import pytest
import ray
import torch
from commands import invoke
from no_ray import Actor
from omegaconf import OmegaConf

from nemo_algos import config as strict
from nemo_algos.engines.nemo import environment
from nemo_algos.engines.nemo.environment import ACTOR, VerifierEnvironment, log_statuses
from nemo_algos.lab.evals import nemo_file
from nemo_algos.preflight.check import launcher

MATH = "math"
CHOICE = "nemo_algos.engines.rewards.choice:verify_choice"
SHIPPED = Path(__file__).parents[3] / "examples" / "configs" / "nemo_rl.yaml"


def talk(*responses: str) -> list[list[dict[str, str]]]:
    return [
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": r}] for r in responses
    ]


def golds(*answers: str) -> list[dict[str, str]]:
    return [{"ground_truth": answer} for answer in answers]


@pytest.fixture
def math() -> Iterator[VerifierEnvironment]:
    made = VerifierEnvironment({"verifier": MATH, "workers": 1, "deadline": 1.0})
    yield made
    made.shutdown()


def test_step_gives_the_verifiers_rewards(math: VerifierEnvironment) -> None:
    metadata = golds("4", "42", "0.5")
    out = math.step(talk(r"\boxed{4}", r"\boxed{42\%}", r"\boxed{\frac{1}{2}}"), metadata)
    assert out.rewards.tolist() == [1, 0, 1] and out.rewards.dtype == torch.float32
    assert out.terminateds.tolist() == [1, 1, 1]
    assert [o["content"] for o in out.observations] == [
        "Environment: correct",
        "Environment: incorrect",
        "Environment: correct",
    ]
    assert out.metadata == metadata and out.next_stop_strings == [None] * 3
    assert out.answers is None


def test_all_that_the_assistant_said_is_the_response(math: VerifierEnvironment) -> None:
    (conversation,) = talk("It is ")
    conversation += [
        {"role": "environment", "content": r"\boxed{5}"},
        {"role": "assistant", "content": r"\boxed{4}"},
        {"role": "environment", "content": r"\boxed{5}"},
    ]
    assert math.step([conversation], golds("4")).rewards.tolist() == [1]


def test_answers_of_an_evaluation_are_the_extractors(math: VerifierEnvironment) -> None:
    out = math.step(talk(r"\boxed{4}", "no box"), golds("4", "4"), True)
    assert out.answers == ["4", None]
    section = {
        "verifier": CHOICE,
        "extractor": "nemo_algos.engines.rewards.answers:letter",
        "workers": 1,
    }
    choice = VerifierEnvironment(section)
    out = choice.step(talk("Answer: B"), golds("B"), True)
    choice.shutdown()
    assert out.rewards.tolist() == [1] and out.answers == ["B"]


def test_what_could_not_be_judged_is_counted(math: VerifierEnvironment) -> None:
    responses = [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{4}", "x" * 1_000_001, r"\boxed{4}"]
    assert math.step(talk(*responses), golds("4", "4", "4", "")).rewards.tolist() == [0, 1, 0, 0]
    counts = {"ok": 1, "timeout": 1, "error": 1, "too_long": 1, "memory": 0}
    assert math.statuses() == {f"verifier/{k}": v for k, v in counts.items()}
    assert set(math.statuses().values()) == {0}  # since the last call


def test_rows_of_apps_go_through_the_recipe(tmp_path: Path) -> None:
    from nemo_rl.data.utils import setup_response_data

    tests = json.dumps({"inputs": ["2 3\n"], "outputs": ["5\n"]})
    given, rows = tmp_path / "train.jsonl", tmp_path / "rows.jsonl"
    row = {"question": "Add.", "input_output": tests}
    given.write_text("".join(json.dumps(row | {"id": i}) + "\n" for i in range(256)))  # a batch
    assert invoke("export", "problems", "apps", given, rows).exit_code == 0
    written = strict.read(SHIPPED.parent / "recipes" / "quatro-qwen2.5-coder-1.5b-1n2g-fsdp.yaml")
    paths = [f"data.{split}.data_path={rows}" for split in ("train", "validation")]
    master = launcher.compose(strict.apply_overrides(written, paths))[0]
    tokenizer, plain = cpu_task.tokenizer(), OmegaConf.to_container(OmegaConf.create(master.data))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    dataset = setup_response_data(tokenizer, plain, None)[0]  # pyright: ignore
    datum: Any = dataset[0]  # pyright: ignore
    said = datum["message_log"][0]["content"]
    assert said.startswith("Add.\n\nYour program reads") and datum["loss_multiplier"] == 1
    code = VerifierEnvironment({**master.env["code_verify"], "workers": 1})
    responses = talk("print(sum(map(int, input().split())))", "print(input())")
    rewards = code.step(responses, [datum["extra_env_info"]] * 2).rewards.tolist()
    code.shutdown()
    assert rewards == [1, 0]


def test_metrics_are_those_of_nemo_rls_math_environment(math: VerifierEnvironment) -> None:
    batch = {
        "rewards": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "is_end": torch.tensor([True, True, False, True]),  # the third was cut: no reward
        "text": torch.tensor([[1, 2], [1, 2], [3, 4], [3, 4]]),
        "generation_lengths": torch.tensor([10, 20, 30, 40]),
        "prompt_lengths": torch.tensor([4, 4, 6, 6]),
    }
    math.step(talk(r"\boxed{4}"), golds("4"))
    same, metrics = math.global_post_process_and_metrics(batch)
    assert same is batch
    assert metrics["accuracy"] == 0.25 and metrics["pass@samples_per_prompt"] == 0.5
    assert metrics["fraction_of_samples_properly_ended"] == 0.75
    assert metrics["correct_solution_generation_lengths"] == 6
    assert metrics["verifier/ok"] == 1 and metrics["verifier/timeout"] == 0


def test_statuses_are_logged_with_the_training_metrics(
    math: VerifierEnvironment, in_process: None
) -> None:
    logged: list[tuple[Any, ...]] = []
    logger = SimpleNamespace(log_metrics=lambda m, step, prefix: logged.append((m, step, prefix)))
    ours, other = Actor(math), SimpleNamespace()
    log_statuses(logger, {"a": ours, "c": other}, {"a": ours})  # no verdict counts twice
    math.step(talk(r"\boxed{4}", r"\boxed{4}"), golds("4", ""))
    logger.log_metrics({"loss": 1.0}, 7, prefix="timing/train")
    logger.log_metrics({"turns": 1.0}, 7, prefix="train")  # NeMo-RL logs a step's rollouts apart
    logger.log_metrics({"loss": 1.0}, 7, prefix="train")
    logger.log_metrics({"loss": 2.0}, 8, prefix="train")
    assert logged[0] == ({"loss": 1.0}, 7, "timing/train")
    none = {f"verifier/{k}": 0 for k in ("ok", "timeout", "error", "too_long", "memory")}
    counted = none | {"verifier/ok": 1, "verifier/error": 1}
    assert logged[1][0] == {"turns": 1.0, **counted}
    assert logged[2][0] == {"loss": 1.0, **counted}
    assert logged[3] == ({"loss": 2.0, **none}, 8, "train")


def test_a_logger_without_our_environments_is_left_alone() -> None:
    logger = SimpleNamespace(log_metrics=print)
    log_statuses(logger, {"a": SimpleNamespace()}, {})
    assert logger.log_metrics is print


def test_the_recipe_of_the_docs_composes() -> None:
    page = (SHIPPED.parents[2] / "docs" / "nemo_rl.md").read_text()
    block = page.partition("## Verifiers as rewards")[2].split("```yaml\n")[1].split("```")[0]
    written = OmegaConf.merge(strict.read(SHIPPED), OmegaConf.create(block))
    master = launcher.compose(written)[0]  # pyright: ignore
    assert master.env["math_verify"] == {"verifier": MATH, "workers": 8, "deadline": 5.0}
    assert master.data["default"]["env_name"] == "math_verify"


def test_what_nemo_rls_evaluation_saves_is_read(tmp_path: Path) -> None:
    from nemo_rl.evals.eval import _save_evaluation_data_to_json

    generation = {"model_name": "m", "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    scores = {"metric": "pass@k", "k_value": 1, "num_tests_per_prompt": 2}
    run = SimpleNamespace(generation=generation, data={"dataset_name": "d"}, eval=scores)
    saved = [
        {
            "prompt": "2+2?",
            "response": response,
            "reward": torch.tensor([reward]).tolist()[0],
            "message_log": [{"role": "user", "token_ids": torch.tensor([1])}],
            "extra_env_info": golds(r"\frac{8}{2}")[0],
            "sample_index": index,
        }
        for index, (response, reward) in enumerate([("4", 1.0), ("5", 0.0)])
    ]
    _save_evaluation_data_to_json(saved, run, str(tmp_path / "saved"))
    assert nemo_file.read(tmp_path / "saved") == [
        ("2+2?", "4", 1.0, 0, r"\frac{8}{2}"),
        ("2+2?", "5", 0.0, 1, r"\frac{8}{2}"),
    ]


@pytest.fixture
def cluster() -> Iterator[None]:
    with local_ray.running(num_cpus=2):
        yield


def test_from_the_recipes_data_file_to_the_reward(
    cluster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nemo_rl.data.utils import setup_response_data
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.environments import utils
    from nemo_rl.experience.rollouts import calculate_rewards

    monkeypatch.setattr(utils, "ENV_REGISTRY", dict(utils.ENV_REGISTRY))
    monkeypatch.setattr(environment, "ENV_REGISTRY", utils.ENV_REGISTRY)
    rows = [{"input": "t2 t3", "output": "t4"}, {"input": "t5", "output": r"\frac{1}{2}"}]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    own = OmegaConf.create(
        {
            "train": {"dataset_name": "ResponseDataset", "data_path": str(path)},
            "validation": None,
            "default": {
                "env_name": "maths",
                "input_key": "input",
                "output_key": "output",
                "processor": "math_hf_data_processor",
                "prompt_file": None,
                "system_prompt_file": None,
            },
            "max_input_seq_length": 64,
        }
    )
    section = {"maths": {"verifier": MATH, "workers": 1}}
    tokenizer = cpu_task.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    environment.register(section)
    assert utils.ENV_REGISTRY["maths"] == {"actor_class_fqn": ACTOR}
    plain = OmegaConf.to_container(own)
    dataset, _, task_to_env, _ = setup_response_data(tokenizer, plain, section)  # pyright: ignore
    data: list[Any] = [dataset[i] for i in range(2)]
    assert [d["extra_env_info"]["ground_truth"] for d in data] == ["t4", r"\frac{1}{2}"]
    for datum, said in zip(data, (r"\boxed{t4}", r"\boxed{0.5}"), strict=True):
        datum["message_log"].append({"role": "assistant", "content": said})
    keys = ("message_log", "task_name", "extra_env_info")
    batch = BatchedDataDict({key: [d[key] for d in data] for key in keys})
    assert calculate_rewards(batch, task_to_env).rewards.tolist() == [1, 1]  # pyright: ignore
    (actor,) = {id(e): e for e in task_to_env.values()}.values()
    assert hasattr(actor, "statuses") and not hasattr(actor, "no_such_method")
    assert ray.get(actor.statuses.remote())["verifier/ok"] == 2  # pyright: ignore
    names = (p.info for p in psutil.process_iter(["name", "num_threads"]))
    counts = [i["num_threads"] for i in names if i["name"].startswith("ray::Verifier")]
    assert counts and max(counts) < 200  # containers limit processes and threads
    ray.get(actor.shutdown.remote())  # pyright: ignore

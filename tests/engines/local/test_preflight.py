"""Every mistake of a run of the embedded engine at once, before a model is loaded."""

import json

import pytest
import small_llama
import torch
from commands import invoke
from says import Says

from nemo_algos.algorithms.methods import METHODS
from nemo_algos.config import load
from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.local.schema import Milestones, TorchClass
from nemo_algos.engines.local.updates import rehearse
from nemo_algos.engines.named import check_verifier, findings_of
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.local import judge as preflight


def three(response, answer, extra):
    """A function of TRL's habit."""


class Half(Task):
    def examples(self, step, number):
        return []


@pytest.fixture
def llama(tmp_path):
    return small_llama.save(tmp_path / "llama")


def rows(path, *given):
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return path


def own(tmp_path, model, *overrides):
    train = rows(tmp_path / "train.jsonl", {"problem": "what is 1 + 1 ?", "answer": "2"})
    return [
        f"policy.model_name={model}",
        f"data.train.data_path={train}",
        "data.validation=null",
        f"logger.log_dir={tmp_path / 'runs'}",
        *overrides,
    ]


def findings(*overrides, name="smollm2.yaml"):
    found = check(name, overrides, "main")
    assert all(f.severity == "error" and "\n" not in f.message for f in found)
    return {f.path: f.message for f in found}


def test_every_mistake_in_one_report_and_no_folder(tmp_path, llama):
    (llama / "chat_template.jinja").write_text("{{ nothing.at.all }}")
    (tmp_path / "file").write_text("")
    wrong = {
        "data.train.data_path": tmp_path / "nope.jsonl",
        "data.validation.data_path": rows(tmp_path / "test.jsonl", {"question": "q"}),
        "data.verifier": f"{__name__}:three",
        "policy.optimizer.name": "torch.optim.Adamw",
        "policy.taught.seed": 1,
        "policy.scheduler": "[{name: torch.optim.lr_scheduler.No}]",
        "policy.device": "cuda" if not torch.cuda.is_available() else "mps",
        "policy.generation.support_replay": True,
        "policy.threads": 0,
        "method.nope": 1,
        "grpo.num_generations_per_prompt": 1,
        "grpo.num_prompts_per_step": 32,
        "logger.log_dir": tmp_path / "file" / "runs",
    }
    overrides = own(tmp_path, llama)[:1] + [f"{k}={v}" for k, v in wrong.items()]
    found = findings(*overrides)
    messages = {
        "data.train.data_path": f"{tmp_path / 'nope.jsonl'} file",
        "data.validation.data_path": "1 'problem' question data.validation.input_key",
        "data.verifier": "three extra response answer prompt",
        "policy.optimizer": "torch.optim.Adamw",
        "policy.scheduler": "torch.optim.lr_scheduler.No {}",
        "policy.device": "cpu",
        "policy.generation.support_replay": "top_p",
        "policy.threads": "0",
        "method.nope": "key",
        "grpo.num_generations_per_prompt": "advantage",
        "logger.log_dir": "directory",
        "policy.tokenizer.chat_template": "'nothing'",
        "policy.taught": "support",
    }
    assert sorted(found) == sorted(messages)
    assert found == {key: Says(words) for key, words in messages.items()}
    before = set(tmp_path.rglob("*"))
    done = invoke("train", "smollm2.yaml", *overrides)
    assert done.exit_code == 2 and all(path in done.stderr for path in messages)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1", "Parquet"),
        ("a.txt", b"{}", ".jsonl .json .csv .gz .parquet"),
        ("a.jsonl", b'[{"problem": "q", "answer": "1"}]', "JSON .json"),
        ("a.json", b"{}", "list rows"),
        ("a.json", b'[{"problem": "", "answer": "1"}]', "problem answer"),
        ("a.csv", b"problem;answer\n1;2\n", "'problem'"),
        ("folder", None, "folder"),
    ],
)
def test_data_that_cannot_be_used_names_the_fix(tmp_path, llama, name, content, message):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    found = findings(*own(tmp_path, llama), f"data.train.data_path={path}")
    assert found.keys() == {"data.train.data_path"}
    (said,) = found.values()
    assert str(path) in said and said == Says(message)


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ("nowhere:f", "nowhere:f ModuleNotFoundError"),
        ("operator:nothing", "operator:nothing AttributeError"),
        ("operator", "package.module:NAME"),
        ("math:pi", "math:pi function"),
        ("operator:neg", "operator:neg a response"),
    ],
)
def test_a_verifier_is_a_function_of_response_and_answer(tmp_path, llama, verifier, message):
    found = findings(*own(tmp_path, llama), f"data.verifier={verifier}")
    assert found == {"data.verifier": Says(message)}
    for usable in ("operator:eq", "nemo_algos.engines.rewards.math:verify_math"):
        assert findings_of(check_verifier, usable, "data.verifier") == []


def lines(optimizer, kwargs, scheduler=()):
    found = rehearse(TorchClass(name=optimizer, kwargs=kwargs), list(scheduler))
    return [str(finding) for finding in found]


def entry(name, **kwargs):
    return TorchClass(name=f"torch.optim.lr_scheduler.{name}", kwargs=kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("torch.optim.AdamW", {"lr": -1.0}, "-1.0"),
        ("torch.optim.AdamW", {"lr": 0.0}, "policy.optimizer.kwargs.lr: 0.0"),
        ("torch.optim.AdamW", {"lr": float("nan")}, "policy.optimizer.kwargs.lr: nan"),
        (
            "torch.optim.AdamW",
            {"lr": 1e-3, "eps": float("inf")},
            "policy.optimizer.kwargs.eps: inf",
        ),
        ("torch.optim.AdamW", {"lr": "nan"}, "policy.optimizer.kwargs.lr: nan"),
        ("torch.optim.AdamW", {"lr": "fast"}, "policy.optimizer.kwargs.lr: fast"),
        ("torch.optim.AdamW", {"eps": "small"}, "torch.optim.AdamW"),
        ("torch.optim.AdamW", {"rate": 1}, "'rate'"),
        ("torch.optim.AdamW", {"betas": [1.5, 0.9]}, "beta"),
        ("torch.optim.LBFGS", {}, "LBFGS"),
        ("torch.optim.SparseAdam", {}, "SparseAdam"),
        ("os.system", {}, "Optimizer"),
        ("AdamW", {}, "AdamW"),
    ],
)
def test_an_optimizer_is_made_and_steps(name, kwargs, message):
    (line,) = lines(name, kwargs)
    assert line.startswith("policy.optimizer") and line == Says(message)


@pytest.mark.parametrize(
    ("scheduler", "messages"),
    [
        ([entry("StepLR", size=3), entry("No")], ["'size'", "lr_scheduler.No", "1 ascending"]),
        ([entry("ReduceLROnPlateau")], ["policy.scheduler: "]),
        ([entry("StepLR", step_size=3), Milestones(milestones=[3])], ["need 0 ascending"]),
        ([*[entry("StepLR", step_size=3)] * 3, Milestones(milestones=[5, 2])], ["got [5, 2]"]),
        ([TorchClass(name="torch.optim.AdamW")], ["LRScheduler"]),
    ],
)
def test_schedulers_are_made_and_step(scheduler, messages):
    found = lines("torch.optim.AdamW", {"lr": 0.1}, scheduler)
    assert len(found) == len(messages)
    assert all(part in line for part, line in zip(messages, found, strict=True)), found
    assert lines("torch.optim.Adamw", {}, scheduler)[1:] == found  # the optimizer hides nothing


def test_own_problems_need_a_model_and_rows():
    assert findings(name="math.yaml") == {
        "policy.model_name": Says("null"),
        "data.train": Says("math data.train.data_path"),
    }


def limits(tmp_path, llama, tokens, *overrides):
    """The warnings about a limit of so many tokens."""
    given = own(tmp_path, llama, f"policy.generation.max_new_tokens={tokens}", *overrides)
    given += ["data.train.data_path=" + str(tmp_path / "answers.jsonl"), "policy.device=cpu"]
    answers = [{"problem": "what", "answer": answer} for answer in ("1 2 3 4 5 6 7", "1", "2")]
    rows(tmp_path / "answers.jsonl", *answers)
    return check("math.yaml", given, "main")


def test_a_limit_that_the_answers_exceed_is_warned_of(tmp_path, llama):
    key, plain = "policy.generation.max_new_tokens", "data.prompt='{problem}'"
    (warning,) = limits(tmp_path, llama, 7, plain)
    assert warning == (key, Says("7 1 3 8"), "warning")
    assert limits(tmp_path, llama, 8, plain) == []
    (warning,) = limits(tmp_path, "some/name", 4)  # by words, and what a box takes
    assert warning.message == (Says("4 3 11 reasoning"))
    assert limits(tmp_path, "some/name", 1, plain, "data.verifier=operator:eq") == []
    done = invoke("check", "math.yaml", *own(tmp_path, "a/b", "policy.generation.max_new_tokens=4"))
    assert done.exit_code == 0 and "warning policy.generation.max_new_tokens" in done.output


def weighted(tmp_path, method, *weights):
    """What is said of such a run's rewards."""
    given = own(tmp_path, "some/name", f"method={method}", "policy.device=cpu")
    for i, weight in enumerate(weights):
        name = f"data.rewards.r{i}"
        given += [f"{name}.function=given_rewards:short", f"{name}.weight={weight}"]
    return check("math.yaml", given, "main")


def test_weights_that_leave_0_to_1_are_warned_of_where_a_method_needs_it(tmp_path):
    (warning,) = weighted(tmp_path, "{name: grpo, bounds: apmpo}", 1.5, -0.5)
    assert warning == ("data.rewards", Says("-0.5 1.5 grpo+apmpo 1"), "warning")
    assert "0 to 1.2" in weighted(tmp_path, "apmpo", 1, 0.2)[0].message
    assert "-0.1 to 1" in weighted(tmp_path, "apmpo", 1, -0.1)[0].message
    assert weighted(tmp_path, "apmpo", 0.7, 0.2, 0.1) == [] == weighted(tmp_path, "apmpo")
    for name, method in METHODS.items():
        if method.needs & {"teacher", "turn_rewards"}:  # refused before
            continue
        assert bool(weighted(tmp_path, name, 2)) == ("unit_rewards" in method.needs)


def test_training_begins_with_the_warnings(tmp_path, llama):
    given = own(tmp_path, llama, "policy.generation.max_new_tokens=1", "grpo.max_num_steps=1")
    quick = ["grpo.num_prompts_per_step=2", "grpo.val_samples_per_prompt=0", "policy.device=cpu"]
    done = invoke("train", "math.yaml", *given, *quick, "logger.tensorboard_enabled=false")
    assert done.exit_code == 0, done.output
    assert "warning policy.generation.max_new_tokens: 1 " in done.stderr
    assert Says("100% policy.generation.max_new_tokens=1") in done.output.splitlines()


@pytest.mark.parametrize("lacks", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_folder_that_lacks_a_file(tmp_path, llama, lacks):
    (llama / lacks).unlink()
    found = findings(*own(tmp_path, llama))
    assert list(found) == ["policy.model_name"] and str(llama) in found["policy.model_name"]


def test_a_model_that_is_not_on_disk(tmp_path):
    for name in (tmp_path / "nope", "nowhere/x.gguf"):
        found = findings(*own(tmp_path, name))
        assert list(found) == ["policy.model_name"] and str(name) in found["policy.model_name"]
    assert findings(*own(tmp_path, "some/name")) == {}  # of the hub: not asked


def test_every_prompt_too_long(tmp_path, llama):
    found = findings(*own(tmp_path, llama, "data.max_input_seq_length=3"))
    assert list(found) == ["data.max_input_seq_length"]
    assert "data.max_input_seq_length: 3" in found.popitem()[1]
    found = findings("data.max_input_seq_length=3", name="grpo.yaml")
    assert found == {"data.max_input_seq_length": Says("countdown")}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("nowhere:T", "nowhere:T"),
        ("operator:eq", "nemo_algos.engines.data.tasks.Task"),
        (f"{__name__}:Half", "Half prompt verify"),
    ],
)
def test_a_task_of_ones_own_is_a_whole_task(task, message):
    found = findings(f"data.task={task}", name="grpo.yaml")
    assert found == {"data.task": Says(message)}


def test_a_resumed_run_needs_no_log_dir(tmp_path):
    override = f"logger.log_dir={tmp_path / 'f' / 'x'}"
    plain = load(preflight.configs.SHIPPED / "grpo.yaml", [override])
    (tmp_path / "f").write_text("")
    assert preflight.judge(plain, tmp_path)
    with pytest.raises(ConfigError, match=r"^logger\.log_dir: "):
        preflight.judge(plain)


def test_an_error_before_the_first_step_leaves_no_folder(tmp_path, llama, monkeypatch):
    """Whatever the preflight cannot see: here a verifier that loads in this process alone."""
    monkeypatch.setattr("operator.later", lambda r, a: 1.0, raising=False)
    overrides = own(
        tmp_path, llama, "data.verifier=operator:later", "grpo.val_samples_per_prompt=0"
    )
    done = invoke("train", "smollm2.yaml", *overrides)
    assert done.exit_code == 2 and "operator:later" in done.stderr
    assert not list((tmp_path / "runs").glob("exp_*"))

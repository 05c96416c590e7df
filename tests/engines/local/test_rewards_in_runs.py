"""Reward functions in whole runs: logged apart, told of when they fail, and stopped for."""

import json

import pytest
import small_llama
from commands import invoke
from says import Says

from nemo_algos.engines.local import manifest
from nemo_algos.engines.local.observer import reward_parts
from nemo_algos.engines.rewards import Verdict
from nemo_algos.preflight.check.judge import check

ROWS = [{"problem": f"{i} + 1 ?", "answer": str(i + 1), "level": i} for i in range(8)]
QUICK = [
    "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=8",
    "grpo.max_num_steps=2",
    "grpo.val_samples_per_prompt=0",
    "policy.precision=float32",
    "policy.train_global_batch_size=16",
    "policy.generation.max_new_tokens=8",
    "data.validation=null",
    "data.answer_prefix=",
    "data.prompt='say {problem}'",
    "logger.tensorboard_enabled=false",
]


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    train = folder / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    model = small_llama.save(folder / "llama")
    return [*QUICK, f"policy.model_name={model}", f"data.train.data_path={train}"]


def reward(name, function, **settings):
    given = {"function": f"given_rewards:{function}", **settings}
    return [f"data.rewards.{name}.{key}={value}" for key, value in given.items()]


def run(folder, *overrides):
    done = invoke("train", "smollm2.yaml", f"logger.log_dir={folder / 'runs'}", *overrides)
    written = folder / "runs" / "exp_001" / "metrics.jsonl"
    rows = [json.loads(line) for line in written.open()] if written.exists() else []
    return done, rows


def test_the_sum_trains_and_each_is_logged(tmp_path, overrides):
    short = reward("short", "short", weight=0.5)
    odd = reward("odd", "even_text", pool="false")
    done, rows = run(tmp_path, *overrides, *short, *odd)
    assert done.exit_code == 0, done.output
    assert len(rows) == 2
    for row in rows:
        total = 0.5 * row["reward/short"] + row["reward/odd"]
        assert row["reward/mean"] == pytest.approx(total)
        assert 0 < row["reward/unverified"] < 16
        assert row["unverified/short"] == 0
        assert row["unverified/odd"] == row["reward/unverified"] == 16 * (1 - row["reward/odd"])
    (told,) = (line for line in done.output.splitlines() if "odd: ValueError: odd" in line)
    assert told == Says(f"warning: 1 {rows[0]['reward/unverified']} 16")
    assert "unjudged" in done.output  # of the second step, whose reason is the same


def test_each_is_measured_in_evaluations_too(tmp_path, overrides):
    short = reward("short", "short", weight=0.5)
    tenth = reward("tenth", "tenth", weight=-1, pool="false")
    (train,) = (o for o in overrides if o.startswith("data.train.data_path"))
    held_out = [train.replace("train", "validation", 1), "grpo.val_samples_per_prompt=2"]
    every = ["grpo.val_period=1", "checkpointing.metric_name=val:reward/short"]
    given = [o for o in overrides if o != "data.validation=null"]
    done, rows = run(tmp_path, *given, *short, *tenth, *held_out, *every)
    assert done.exit_code == 0, done.output
    found = [row for row in rows if "validation/accuracy" in row]
    assert len(found) == 3
    for row in found:
        assert row["validation/reward/tenth"] == pytest.approx(0.1)
        total = 0.5 * row["validation/reward/short"] - 0.1
        assert row["validation/accuracy"] == pytest.approx(total)
    summary = json.loads((tmp_path / "runs" / "exp_001" / "summary.json").read_text())
    best = max(row["validation/reward/short"] for row in found[1:])
    assert summary["best"]["validation/reward/short"] == best
    unknown = findings(*given, *short, *held_out, *every[:1], f"{every[1]}s")
    assert unknown["checkpointing.metric_name"] == (Says("reward/shorts reward/short"))


def test_what_judges_nothing_stops_the_run_at_step_1(tmp_path, overrides):
    done, _ = run(tmp_path, *overrides, "data.verifier=given_rewards:boom")
    assert done.exit_code == 1 and not list((tmp_path / "runs").glob("*"))
    assert done.stderr == Says("16 KeyError 'gold'")


def test_what_judges_nothing_later_leaves_the_run_as_it_was(tmp_path, overrides, monkeypatch):
    monkeypatch.setattr("given_rewards.calls", 0, raising=False)
    late = reward("late", "late", pool="false")
    done, rows = run(tmp_path, *overrides, *late, "checkpointing.save_period=1")
    assert done.exit_code == 1 and len(rows) == 1
    assert done.stderr == Says("late 16")
    assert (tmp_path / "runs" / "exp_001" / "checkpoints" / "step_000001.pt").exists()


@pytest.mark.parametrize(("named", "told"), [([], 1), (["method.success_reward=odd"], 0)])
def test_a_reward_that_every_response_earns_is_told_once(tmp_path, overrides, named, told):
    rewards = [*reward("short", "short", weight=0.5), *reward("odd", "even_text", pool="false")]
    done, rows = run(tmp_path, *overrides, *rewards, "method.name=etr", *named)
    assert done.exit_code == 0 and len(rows) == 2, done.output
    said = done.stdout + done.stderr
    assert said.count("`method.success_reward`") == told
    assert ("step 1: every response in a group whose rewards differ" in said) == bool(told)


def of_parts(**parts):
    verdicts = {name: Verdict(value, "ok") for name, value in parts.items()}
    return Verdict(sum(parts.values()), "ok", parts=verdicts)


def test_a_turn_that_a_response_lacks_earned_0():
    """The first one ended after a turn, the last one was not judged."""
    verdicts = [of_parts(turn_1=1.0), of_parts(turn_1=0.5, turn_2=1.0), Verdict(0.0, "error")]
    found = {name: values.tolist() for name, values in reward_parts(verdicts).items()}
    assert found == {"turn_1": [1.0, 0.5, 0.0], "turn_2": [0.0, 1.0, 0.0]}


def test_another_part_that_a_response_lacks_is_named():
    whole = of_parts(right=1.0, brief=0.5)
    judged = reward_parts([whole, Verdict(0.0, "timeout")])
    assert {name: values.tolist() for name, values in judged.items()} == {
        "right": [1.0, 0.0],
        "brief": [0.5, 0.0],
    }
    with pytest.raises(ValueError, match="response 1 has no part 'brief'"):
        reward_parts([whole, of_parts(right=1.0)])


def findings(*overrides, name="smollm2.yaml"):
    found = check(name, overrides, "main")
    return {f.path: f.message for f in found if f.severity != "note"}


def test_a_verifier_and_rewards_contradict_one_another(overrides):
    both = ["data.verifier=operator:eq", *reward("short", "short")]
    assert findings(*overrides, *both) == {"data.verifier": Says("data.rewards")}


@pytest.mark.parametrize("name", ["mean", "unverified", "positive_share", "Short", "a-b", "a b"])
def test_names_that_a_metric_cannot_have(overrides, name):
    (message,) = findings(*overrides, *reward(name, "short")).values()
    assert message == (Says(f"'{name}' mean positive_share unverified"))


def test_a_function_of_trls_is_refused_before_anything_is_loaded(overrides):
    found = findings(*overrides, *reward("mine", "trl"), *reward("gone", "nowhere"))
    assert found["data.rewards.mine.function"] == (
        Says("given_rewards:trl completions response answer prompt row tokens")
    )
    assert "cannot import given_rewards:nowhere" in found["data.rewards.gone.function"]
    assert len(found) == 2


@pytest.mark.parametrize("key", ["data.verifier=operator:eq", *reward("short", "short")])
def test_a_task_that_judges_by_itself_takes_no_rewards(key):
    ((path, message),) = findings(key, name="grpo.yaml").items()
    assert path in ("data.verifier", "data.rewards")
    assert message == Says("countdown")


def test_a_function_in_this_folder_that_is_not_on_the_path(tmp_path, monkeypatch, overrides):
    (tmp_path / "mine_here.py").write_text("def f(response):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    message = findings(*overrides, "data.verifier=mine_here:f")["data.verifier"]
    assert message == Says("mine_here:f PYTHONPATH=.")


def test_a_module_that_is_nowhere_here_is_asked_for_its_folder(overrides):
    message = findings(*overrides, "data.verifier=mine_elsewhere:f")["data.verifier"]
    assert message == Says("mine_elsewhere:f PYTHONPATH=FOLDER")


def test_a_short_name_that_is_misspelt_is_named(overrides):
    assert "math" in findings(*overrides, "data.verifier=maths")["data.verifier"]


@pytest.mark.parametrize("name", ["short", "a.b"])
def test_a_reward_that_a_folder_names_is_code(name):
    def foreign(function):
        config = {"data": {"rewards": {name: {"function": function, "weight": 1.0, "pool": True}}}}
        return manifest.foreign(config)

    assert foreign("os:system") == {f"data.rewards.{name}.function": "os:system"}
    assert foreign("math") == foreign("countdown") == {}


def test_it_is_said_by_step_3_that_every_reward_is_equal(tmp_path, overrides):
    done, _ = run(tmp_path, *overrides, *reward("same", "same"), "grpo.max_num_steps=4")
    (said,) = (line for line in done.output.splitlines() if line.startswith("warning: step 3"))
    assert said == Says("since step 1 every group same reward mean is 1")

"""An evaluation asks what training asked: prompt, system message, prefix, keys of the rows."""

import json

import pytest
import small_llama
from commands import invoke
from says import Says

from nemo_algos.engines.data.prompts import FILE, TrainedPrompt
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.lab.evals.benchmarks import load

ROWS = [
    {"chat": [{"role": "user", "content": f"what is {i} + 1"}], "gold": str(i + 1)}
    for i in range(4)
]
ROWS[1]["chat"].insert(0, {"role": "system", "content": "so"})
WORDED = {"prompt": "{problem} ?", "system_prompt": "what is so", "answer_prefix": "so {problem} ="}
KEYS = {"input_key": "chat", "output_key": "gold"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of one step on ROWS, and the token ids of its prompts."""
    folder, asked = tmp_path_factory.mktemp("trained"), []
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    model = small_llama.save(folder / "llama")
    settings = {
        "policy.model_name": model,
        "data.train.data_path": folder / "rows.jsonl",
        "data.verifier": "operator:eq",
        "grpo.num_prompts_per_step": 4,
        "grpo.num_generations_per_prompt": 2,
        "grpo.max_num_steps": 1,
        "policy.train_global_batch_size": 8,
        "policy.generation.max_new_tokens": 4,
        "logger.log_dir": folder / "runs",
        "logger.tensorboard_enabled": "false",
        **{f"data.{key}": f"'{text}'" for key, text in WORDED.items()},
        **{f"data.train.{key}": name for key, name in KEYS.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFPolicy, "generate", spied(HFPolicy.generate, asked))
        done = invoke("train", "math.yaml", *(f"{k}={v}" for k, v in settings.items()))
    assert done.exit_code == 0, done.output
    return folder, asked


def spied(generate, asked):
    def spy(self, prompts, *rest):
        asked.extend(prompts)
        return generate(self, prompts, *rest)

    return spy


def evaluated(folder, out, *overrides):
    asked = []
    given = [f"benchmarks.math.data={folder / 'rows.jsonl'}", "sampling.samples=2", f"out={out}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFPolicy, "generate", spied(HFPolicy.generate, asked))
        done = invoke("eval", "eval/own.yaml", *given, *overrides)
    assert done.exit_code == 0, done.output
    return asked, done.output


@pytest.mark.parametrize("of", ["run", "model"])
def test_the_same_token_ids_as_in_training(trained, tmp_path, of):
    folder, before = trained
    run = folder / "runs" / "exp_001"
    policy = {"model_name": run / "model", "train_global_batch_size": 1}
    policy |= {"train_micro_batch_size": 1, "generation.max_new_tokens": 4}
    policy |= {"optimizer.name": "torch.optim.SGD"}
    model = [f"model.policy.{key}={value}" for key, value in policy.items()]
    asked, output = evaluated(folder, tmp_path, *([f"model.run={run}"] if of == "run" else model))
    assert len(asked) == 4 and sorted(asked) == sorted(before)
    words = {small_llama.tokenizer().decode(ids) for ids in asked}
    assert "user what is so user what is 3 + 1 ? assistant so what is 3 + 1 =" in words
    assert "user so user what is 1 + 1 ? assistant so what is 1 + 1 =" in words
    said = Says("math: operator:eq math benchmarks.math.verifier")
    assert said in output.splitlines()


def test_the_benchmarks_own_prompt_on_demand(trained, tmp_path):
    folder, _ = trained
    given = [f"model.run={folder / 'runs' / 'exp_001'}", "benchmarks.math.prompt=benchmark"]
    (tmp_path / "rows.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    asked, _ = evaluated(tmp_path, tmp_path / "out", *given)
    (words,) = {small_llama.tokenizer().decode(ids) for ids in asked}
    assert words.startswith("user 1 + 1 <unk>") and words.endswith("assistant")


def test_a_reward_is_given_prompt_and_length_as_in_training(trained, tmp_path):
    folder, _ = trained
    given = [f"model.run={folder / 'runs' / 'exp_001'}", "benchmarks.math.verifier=given_rewards:"]
    evaluated(folder, tmp_path, given[0], f"{given[1]}asked_in_words")
    metrics = json.loads((tmp_path / "math" / "metrics.json").read_text())
    assert metrics["scalars"]["mean"]["value"] == 1
    data = f"benchmarks.math.data={folder / 'rows.jsonl'}"
    refused = invoke("eval", "eval/own.yaml", data, given[0], f"{given[1]}with_row")
    assert refused.exit_code == 2 and refused.stderr == Says(
        "benchmarks.math.verifier: given_rewards:with_row row response answer prompt tokens"
    )


def test_an_inherited_benchmark_without_a_file_can_be_left_out(trained, tmp_path):
    given = [f"model.run={trained[0] / 'runs' / 'exp_001'}", f"out={tmp_path}"]
    refused = invoke("eval", "eval/own.yaml", *given, "benchmarks.gsm8k.data=nowhere.jsonl")
    assert refused.exit_code == 2
    said = "benchmarks.math.data: math benchmarks.math=null"
    assert refused.stderr.splitlines()[0] == Says(said)
    assert "gsm8k=null" not in refused.stderr  # its file is named
    named = "benchmarks.gsm8k.data=" + str(trained[0] / "gsm8k.jsonl")
    (trained[0] / "gsm8k.jsonl").write_text('{"question": "1 + 1", "answer": "#### 2"}\n')
    done = invoke("eval", "eval/own.yaml", *given, named, "benchmarks.math=null")
    assert done.exit_code == 0 and (tmp_path / "gsm8k").is_dir()
    assert not (tmp_path / "math").exists()


def test_what_lies_beside_the_model(trained, tmp_path):
    path = trained[0] / "runs" / "exp_001" / "model"
    found = TrainedPrompt.read(path)
    assert found.model_dump() == {**WORDED, **KEYS, "rewards": ["operator:eq"]}
    assert TrainedPrompt.read(tmp_path) is None
    (tmp_path / FILE).write_text('{"prompt": 3, "code": "x"}')
    with pytest.raises(ValueError, match="prompt: input should be a valid string"):
        TrainedPrompt.read(tmp_path)


def test_remarks_on_the_answer_follow_the_trained_prompt(tmp_path):
    row = {"problem": "How fast?", "answer": "4.2", "unit": "m/s"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    trained = TrainedPrompt(prompt="Q: {problem}", system_prompt="Think.", answer_prefix="A:")
    (problem,) = load("math", str(tmp_path / "a.jsonl"), trained=trained).problems
    assert problem.prompt == "Q: How fast? Give the answer in m/s, without the unit."
    assert problem.messages[0] == {"role": "system", "content": "Think."}
    assert problem.prefix == "A:"

"""LocalSampler: the policy of a run or any model, asked what training asked; a token replaced."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_llama
import torch
import trainers
from commands import invoke
from says import Says

from nemo_algos.engines.data import countdown
from nemo_algos.engines.data.prompts import FILE, TrainedPrompt
from nemo_algos.engines.local import build, checkpoint
from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.lab.evals.benchmarks import load
from nemo_algos.lab.evals.local_sampler import LocalSampler, perturb
from nemo_algos.lab.evals.problem import Problem
from nemo_algos.lab.evals.schema import LocalModel, Perturbation, SamplingSection

PROBLEMS = [Problem("6 10 1 > 17", "6 10 1 > 17 :", "6 10 1 > 17"), Problem("b", "1 2 3 > 6 :", "")]


def weights(seed):
    model = trainers.policy(seed).model
    model.embed.weight.data[countdown.EOS] /= 6  # it would end everything at once
    return model


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose weights at steps 0, 1, 2 are those of seeds 0, 1, 2."""
    config, _ = trainers.checked()
    (tmp_path / "manifest.json").write_text(json.dumps({"config": config.model_dump(mode="json")}))
    for step in (1, 2):
        state = {"step": step, "model": weights(step).state_dict()}
        checkpoint.save(tmp_path / "checkpoints", state, keep_top_k=2)
    monkeypatch.setattr(build, "warm_start", lambda *_: weights(0))
    return str(tmp_path)


def sampler(model, **sampling):
    return LocalSampler(model, SamplingSection(**sampling))


def asked(of, wanted):
    found = []
    of.sample(wanted, found.extend)
    return found


def sampled(of, samples=(0, 1, 2, 3)):
    return {(g.problem, g.sample): g for g in asked(of, [(p, list(samples)) for p in PROBLEMS])}


@pytest.mark.parametrize(("step", "seed"), [(0, 0), (1, 1), (2, 2), (None, 2)])
def test_the_weights_are_those_of_the_step(run, step, seed):
    of = sampler(LocalModel(run=run, step=step))
    for got, want in zip(of.policy.model.parameters(), weights(seed).parameters(), strict=True):
        assert torch.equal(got, want)


def test_threads_are_those_of_training_unless_set(run, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    policy = small_llama.section(small_llama.save(tmp_path / "llama"))
    for model in (LocalModel(run=run), LocalModel(run=run, threads=3), LocalModel(policy=policy)):
        sampler(model)
    sampler(LocalModel(policy=policy.model_copy(update={"threads": 2})))
    assert asked == [1, 3, 7, 2]


def test_identity_is_of_weights_wherever_they_lie(run):
    assert sampler(LocalModel(run=run)).identity == sampler(LocalModel(run=run + "/")).identity
    hashes = {s: sampler(LocalModel(run=run, step=s)).identity["weights"] for s in (0, 1, 2, None)}
    assert len({hashes[0], hashes[1], hashes[2]}) == 3
    assert hashes[2] == hashes[None]


def test_samples_do_not_depend_on_what_else_is_asked(run):
    of = sampler(LocalModel(run=run))
    everything = sampled(of)
    alone = asked(of, [(PROBLEMS[1], [0, 1, 2, 3])])
    assert alone == [everything["b", i] for i in range(4)]
    assert len({g.response for g in everything.values()}) > 2
    assert sampled(sampler(LocalModel(run=run), seed=1)) != everything


def test_temperature_and_top_p_reach_the_policy(run):
    cold = sampled(sampler(LocalModel(run=run), temperature=1e-4), range(8))
    narrow = sampled(sampler(LocalModel(run=run), top_p=1e-6), range(8))
    assert cold == narrow
    assert len({g.response for g in cold.values() if g.problem == "b"}) == 1


def test_a_model_of_transformers_answers_in_its_chat_template(tmp_path):
    section = small_llama.section(small_llama.save(tmp_path))
    of = sampler(LocalModel(policy=section), max_tokens=6)
    prompts, generate = [], of.policy.generate
    of.policy.generate = lambda ids, *rest: prompts.extend(ids) or generate(ids, *rest)
    (generation,) = asked(of, [(Problem("a", "what is 1 + 1", "2"), [5])])
    assert of.policy.tokenizer.decode(prompts[0]) == "user what is 1 + 1 assistant"
    assert (generation.problem, generation.sample) == ("a", 5)
    assert generation.tokens <= 6


def test_what_is_not_there_is_said(run, tmp_path):
    with pytest.raises(ValueError, match=r"manifest\.json"):
        sampler(LocalModel(run=str(tmp_path / "none")))
    with pytest.raises(ValueError, match="0, 1, 2"):
        sampler(LocalModel(run=run, step=3))
    (Path(run) / "checkpoints" / "step_000002.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"step_000002.pt cannot be loaded"):
        sampler(LocalModel(run=run))
    run = LocalModel(run=run, step=1)
    with pytest.raises(ValueError, match="images"):
        asked(sampler(run), [(Problem("a", "1 2 3 > 6 :", "", ("x",)), [0])])
    with pytest.raises(ValueError, match=r"does not know 'What'"):
        asked(sampler(run), [(Problem("a", "What is it?", ""), [0])])


END, GOES_ON = 0, 77
PROMPT = [50, 51]


class Scripted:
    """Goes on from every prompt with 77 and the end; remembers what it was asked."""

    ends, words = {END}, [1, 2, 3, 4, 5]

    def __init__(self):
        self.prompts = []

    def generate(self, prompts, group_size, generator):
        self.prompts += prompts
        assert group_size == 1
        assert len({len(prompt) for prompt in prompts}) == 1  # countdown's model needs it
        return SimpleNamespace(responses=lambda: [[GOES_ON, END] for _ in prompts])


def drawn(rows, entropies):
    tokens = torch.tensor(rows)
    zero = torch.zeros(tokens.shape)
    prompts = torch.tensor([PROMPT])
    group = torch.zeros(len(rows), dtype=torch.long)
    shown, mask = prompts > 0, tokens >= 0
    return Experience(prompts, shown, group, tokens, mask, zero, torch.tensor(entropies), zero)


def perturbed(rows, entropies, limit=99, seed=0, **which):
    policy, generator = Scripted(), torch.Generator().manual_seed(seed)
    which = Perturbation(**which)
    return perturb(policy, PROMPT, drawn(rows, entropies), which, limit, generator), policy


ENTROPY = [0.2, 0.9, 0.1, 0.3, 5.0]  # the end token's is the highest, and does not count


@pytest.mark.parametrize(
    ("tokens", "share", "places"),
    [
        ("high_entropy", 0.25, {1}),
        ("high_entropy", 0.26, {1, 3}),  # ceil(0.26 x 4) = 2
        ("low_entropy", 0.05, {2}),
        ("low_entropy", 0.5, {0, 2}),
        ("any", 0.05, {0, 1, 2, 3}),
    ],
)
def test_one_of_the_marked_tokens_is_replaced_and_the_rest_sampled_anew(tokens, share, places):
    row, seen = [1, 2, 3, 4, END], Counter()
    for seed in range(60):
        found, policy = perturbed([row], [ENTROPY], seed=seed, tokens=tokens, share=share)
        *begun, last = found[0][:-2]
        place = len(begun)
        assert begun == row[:place]
        assert last in {1, 2, 3, 4, 5} - {row[place]}
        assert found[0][-2:] == [GOES_ON, END]
        assert policy.prompts == [[*PROMPT, *begun, last]]
        seen[place] += 1
    assert set(seen) == places
    assert min(seen.values()) >= 60 / len(places) / 3


def test_equal_entropies_are_marked_by_chance_and_lengths_are_kept_apart():
    found, policy = perturbed([[1, 2, 3, 4]] * 20, [[0.0] * 4] * 20, tokens="low_entropy")
    assert {len(tokens) for tokens in found} == {3, 4, 5, 6}
    assert len(policy.prompts) == 20


def test_a_response_is_cut_at_the_limit_and_an_end_alone_stays():
    rows, entropies = [[1, 2, 3], [END, -1, -1]], [[0.0, 0.0, 9.0], [9.0, 0.0, 0.0]]
    found, _ = perturbed(rows, entropies, limit=3, tokens="high_entropy")
    assert found[0][:2] == [1, 2]
    assert (len(found[0]), found[1]) == (3, [END])


def test_the_countdown_model_is_perturbed_alike_every_time_and_ends_within_its_limit(run):
    def responses(**more):
        of = sampler(LocalModel(run=run), max_tokens=9, **more)
        return [(g.response, g.tokens) for g in asked(of, [(PROBLEMS[0], [0, 1, 2, 3])])]

    which = Perturbation(tokens="high_entropy")
    assert responses(perturbation=which) == responses(perturbation=which)
    for (before, _), (after, length) in zip(
        responses(), responses(perturbation=which), strict=True
    ):
        assert before != after
        assert length <= 9
        assert all(word in countdown.TOKEN for word in after.split())


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

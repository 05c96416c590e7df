"""The whole path: sample, verify, measure, stored, resumed; and files as NeMo-RL saves them."""

import io
import json
import shutil
from collections import Counter

import pytest
import torch
from completions import completion, server
from rich.console import Console

from nemo_algos.findings import ConfigError
from nemo_algos.lab.evals.nemo_file import ScoredResponse, read
from nemo_algos.lab.evals.run import evaluate
from nemo_algos.lab.evals.schema import parse_config

ROWS = [{"problem": f"{a} + {b}?", "answer": str(a + b)} for a, b in ((1, 1), (2, 3), (4, 5))]


def answer(body):
    """Right for two seeds of three, the first problem always."""
    question = body["messages"][0]["content"].split("?")[0]
    a, b = map(int, question.split(" + "))
    wrong = body["seed"] % 3 == 0 and a > 1
    return 200, completion(rf"It is \boxed{{{a + b + wrong}}}", tokens=5)


def config(folder):
    """One that evaluates the sums of that folder into it."""
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {
        "model": {"engine": "endpoint", "name": "m"},
        "benchmarks": {"math": {"data": str(data), "verifier": "completions:same_box"}},
        "sampling": {"samples": 8},
        "metrics": {"similarities": ["tfidf"], "resamples": 50},
        "out": str(folder / "out"),
    }


@pytest.fixture
def written(tmp_path):
    return config(tmp_path)


def run(written, url, console=None, model=(), **changed):
    """The folder and its metrics. model: keys that differ."""
    plain = {**written, **changed, "model": {**written["model"], "url": url, **dict(model)}}
    (folder,) = evaluate(parse_config(plain), console or Console(quiet=True))
    return folder, json.loads((folder / "metrics.json").read_text())


def recorded():
    return Console(file=io.StringIO(), record=True, width=200)


def test_from_question_to_metrics(written):
    del written["benchmarks"]["math"]["verifier"]  # the benchmark's own
    with server(answer) as (url, seen):
        folder, metrics = run(written, url)
    right = Counter(b["messages"][0]["content"].split("?")[0] for _, _, b in seen if b["seed"] % 3)
    want = [8, right["2 + 3"], right["4 + 5"]]
    assert metrics["correct"] == want
    assert 0 < want[1] < 8
    assert metrics["scalars"]["mean"]["value"] == pytest.approx(sum(want) / 24)
    assert metrics["scalars"]["length/tokens"]["value"] == 5
    assert metrics["curves"]["pass@k"]["value"][-1] == 1
    assert metrics["statuses"] == {"ok": 24}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["model"] == {"engine": "endpoint", "model": "m"}
    assert metrics["curves"]["maj@k"]["value"][0] == pytest.approx(sum(want) / 24)


def test_what_is_stored_is_not_asked_again(written):
    with server(answer) as (url, seen):
        folder, first = run(written, url)
        assert len(seen) == 24
        _, again = run(written, url)
        assert (len(seen), again) == (24, first)
        _, more = run(written, url, sampling={"samples": 10})
        assert (len(seen), more["samples"]) == (30, 10)
        _, other = run(written, url, sampling={"samples": 10}, metrics={"self_bleu": False})
        assert len(seen) == 30
    assert "self_bleu" not in other["scalars"]
    assert len((folder / "generations.jsonl").read_text().splitlines()) == 30


def test_a_stopped_evaluation_goes_on(written):
    def stops(body):
        return answer(body) if len(seen) <= 10 else (401, "enough")

    with server(stops) as (url, seen), pytest.raises(ValueError, match="status 401"):
        run(written, url, model={"concurrency": 1})
    assert len(seen) == 11
    with server(answer) as (url, seen):
        _, metrics = run(written, url)
    assert (len(seen), metrics["problems"]) == (14, 3)


def test_what_is_no_response_or_no_verdict_is_said(written):
    def reply(body):
        question = body["messages"][0]["content"]
        if question.startswith("1"):
            return 400, "too long"
        return 200, completion("" if question.startswith("2") else r"\boxed{9}")

    console = recorded()
    with server(reply) as (url, _):
        _, metrics = run(written, url, console)
    said = console.export_text()
    assert "warning: 8 responses are refused: status 400" in said
    assert "warning: 8 responses are empty" in said
    assert any("8 verdicts" in line and "status 400" in line for line in said.splitlines())
    assert (metrics["correct"], metrics["statuses"]) == ([0, 0, 8], {"ok": 16, "error": 8})


def test_a_warning_counts_what_is_judged_now(written):
    """By another verifier, to which "2" is no letter: said, not scored 0 silently."""
    written["benchmarks"]["math"]["verifier"] = "nemo_algos.engines.rewards.choice:verify_choice"
    with server(answer) as (url, _):
        _, metrics = run(written, url)
        console = recorded()
        run(written, url, console, sampling={"samples": 2})
    assert metrics["statuses"] == {"error": 24}
    assert "warning: 6 verdicts are error" in console.export_text()


def test_a_verifier_that_does_not_load_is_said_before_anything_is_sampled(written):
    written["benchmarks"]["math"]["verifier"] = "nemo_algos.engines.rewards.maths:verify_math"
    said = pytest.raises(
        ValueError, match=r"^benchmarks.math.verifier: cannot import .*:verify_math"
    )
    with server(answer) as (url, seen), said:
        run(written, url)
    assert not seen


@pytest.mark.parametrize("engine", ["endpoint", "nemo_rl"])
@pytest.mark.parametrize("name", ["by_prompt", "with_row", "alone"])
def test_what_only_our_own_models_give_is_refused(written, engine, name):
    written["benchmarks"]["math"]["verifier"] = f"given_rewards:{name}"
    if engine == "nemo_rl":
        written["model"] = {"engine": engine, "file": "none.json"}
    else:
        written["model"]["url"] = "http://localhost:9/v1"
    with pytest.raises(ConfigError, match=r"needs \w+\. .*response, answer"):
        evaluate(parse_config(written), Console(quiet=True))


def test_nothing_is_sampled_where_a_file_is_missing(written):
    """All files at once, and what else can be seen without a model."""
    written["benchmarks"]["math500"] = {"data": "none.jsonl"}
    written["benchmarks"]["gsm8k"] = {"data": "none.parquet", "verifier": "operator:neg"}
    with server(answer) as (url, seen), pytest.raises(ConfigError) as raised:
        run(written, url)
    keys = ["gsm8k.verifier", "math500.data", "gsm8k.data"]
    assert [f.path for f in raised.value.findings] == [f"benchmarks.{key}" for key in keys]
    assert "cannot read none.jsonl" in str(raised.value) and not seen
    policy = {"model_name": "./none", "device": "cuda", "optimizer": {"name": "torch.optim.SGD"}}
    sizes = {"train_global_batch_size": 1, "train_micro_batch_size": 1}
    policy |= {**sizes, "generation": {"max_new_tokens": 4}}
    written["model"] = {"engine": "local", "policy": policy}
    with pytest.raises(ConfigError) as raised:
        evaluate(parse_config(written), Console(quiet=True))
    paths = [f.path for f in raised.value.findings]
    there = torch.cuda.is_available()
    assert paths[-1] == "model.policy.model_name" and ("model.policy.device" in paths) != there


def test_a_benchmark_has_its_metrics_before_the_next_one_is_sampled(written, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"problem": "9 + 9?", "answer": "18"}) + "\n")
    written["benchmarks"]["math500"] = {"data": str(tmp_path / "long.jsonl")}

    def refuses(body):
        return (404, "no such model") if "9 + 9" in body["messages"][0]["content"] else answer(body)

    with server(refuses) as (url, _), pytest.raises(ValueError, match="no such model"):
        run(written, url)
    assert (tmp_path / "out" / "math" / "metrics.json").exists()


def saved(folder, golds=True):
    """NeMo-RL's file: two prompts of three and two responses, one of them judged wrongly."""
    info = str({"ground_truth": "2"}) if golds else "None"
    found = [("a", "2", 1.0), ("a", "3", 0.0), ("a", "1", 0.0), ("b", "2", 1.0), ("b", "2.0", 0.0)]
    rows = [
        {"prompt": p, "response": rf"\boxed{{{r}}}", "reward": reward, "extra_env_info": info}
        for p, r, reward in found
    ]
    (folder / "evaluation_data.json").write_text(json.dumps({"evaluation_data": rows}))
    return {
        "model": {"engine": "nemo_rl", "file": str(folder)},
        "benchmarks": {"math500": {}},
        "metrics": {"similarities": ["tfidf"], "resamples": 50},
        "out": str(folder / "out"),
    }


@pytest.mark.parametrize(
    ("golds", "said"),
    [
        (True, "1 of 4 verdicts differ from NeMo-RL's rewards"),
        (False, "these are NeMo-RL's rewards"),
    ],
)
def test_what_nemo_rl_saved(tmp_path, golds, said):
    console = recorded()
    (folder,) = evaluate(parse_config(saved(tmp_path, golds)), console)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (metrics["samples"], metrics["correct"]) == (2, [1, 1 + golds])
    assert "finished" not in metrics["scalars"]  # the file does not say
    assert said in console.export_text()
    (tmp_path / "out" / "math500" / "metrics.json").unlink()
    evaluate(parse_config(saved(tmp_path, golds)), Console(quiet=True))
    again = json.loads((folder / "metrics.json").read_text())
    assert again == metrics


def test_another_file_in_the_same_folder_is_refused(tmp_path):
    written = saved(tmp_path)
    written["benchmarks"]["math500"] = {"verifier": "completions:same_box"}
    evaluate(parse_config(written), Console(quiet=True))
    path = tmp_path / "evaluation_data.json"
    path.write_text(path.read_text().replace("3}", "4}"))
    with pytest.raises(ValueError, match=r"model.responses: \w+ -> \w+"):
        evaluate(parse_config(written), Console(quiet=True))


def test_refusing_every_request_is_an_error_and_no_score(written, tmp_path):
    """And the folder is nobody's: another model, or the same one otherwise asked, may have it."""
    said = {"error": {"message": "you must provide a chat template if the tokenizer has none"}}
    (tmp_path / "out" / "math").mkdir(parents=True)
    (tmp_path / "out" / "math" / "metrics.json").write_text("{}")  # of a version that scored it 0
    with server(lambda body: (400, said)) as (url, seen):
        with pytest.raises(ValueError, match=r"^math: .*24") as error:
            run(written, url)
        assert "status 400" in str(error.value) and "chat template" in str(error.value)
        assert 'model.completions="{prompt}"\'' in str(error.value)
    assert not (tmp_path / "out" / "math" / "metrics.json").exists()
    reply = {"choices": [{"text": r"\boxed{2}", "finish_reason": "stop"}]}
    with server(lambda body: (200, reply)) as (url, seen):
        run(written, url, model={"name": "n", "completions": "{prompt}"})
        assert len(seen) == 24
        with pytest.raises(ValueError, match=r"model.completions: \{prompt\} -> None"):
            run(written, url, model={"name": "n"})
    assert json.loads((tmp_path / "out/math/metrics.json").read_text())["correct"] == [8, 0, 0]


def test_where_some_are_refused_what_is_there_is_measured(written):
    """Also by a run that asks only for what was refused, and is refused again."""

    def reply(body):
        odd = body["messages"][0]["content"].startswith("1")
        return (200, {"choices": []}) if odd else answer(body)

    for requests in (16 + 8, 8):
        with server(reply) as (url, seen):
            _, metrics = run(written, url)
        assert metrics["statuses"] == {"ok": 16, "error": 8}
        assert len(seen) == requests
    with server(answer) as (url, seen):
        folder, metrics = run(written, url)
    assert (len(seen), metrics["statuses"]) == (8, {"ok": 24})
    rows = map(json.loads, (folder / "generations.jsonl").read_text().splitlines())
    answered = [(r["problem"], r["sample"]) for r in rows if r["finish"] == "stop"]
    assert len(answered) == len(set(answered)) == 24


def test_no_number_is_no_json(written, monkeypatch):
    """A metric that is none would be no JSON: an error, not a file that nothing else reads."""
    monkeypatch.setattr("nemo_algos.lab.evals.run.measure", lambda *_, **__: {"mean": float("nan")})
    with server(answer) as (url, _), pytest.raises(ValueError, match="not JSON compliant"):
        run(written, url)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """The folder of an evaluation."""
    folder = tmp_path_factory.mktemp("evaluation")
    with server(answer) as (url, _):
        run(config(folder), url)
    return folder


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("generations", "sample", "0"),
        ("generations", "sample", -1),
        ("generations", "response", None),
        ("generations", "tokens", 7.5),
        ("generations", "finish", 1),
        ("generations", "key", ...),
        ("generations", "problem", ...),
        ("verdicts", "status", "fine"),
        ("verdicts", "detail", None),
        ("verdicts", "of", ...),
        *(("verdicts", "reward", float(x)) for x in ("nan", "inf", "-inf")),
        *(("verdicts", "reward", x) for x in ("1", None, True)),
    ],
)
def test_an_edited_line_is_named(evaluation, tmp_path, name, key, value):
    shutil.copytree(evaluation, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "out" / "math" / f"{name}.jsonl"
    first, *rest = path.read_text().splitlines()
    row = {**json.loads(first), key: value}
    row = {k: v for k, v in row.items() if v is not ...}
    path.write_text("\n".join([json.dumps(row), *rest, ""]))
    with pytest.raises(ValueError, match=rf"{name}.jsonl line 1: {key}: .*remove the line"):
        run({**config(evaluation), "out": str(tmp_path / "out")}, "http://127.0.0.1:9/v1")


def item(index, prompt, response, reward, info="{'ground_truth': '4'}"):
    return {
        "prompt": prompt,
        "response": response,
        "reward": reward,
        "message_log": "[{'role': 'user', 'content': ...}]",
        "extra_env_info": info,
        "sample_index": index,
    }


def save(folder, *items):
    path = folder / "evaluation_data.json"
    path.write_text(json.dumps({"evaluation_data": items}, indent=2))
    return path


def test_rows_with_samples_numbered_by_prompt(tmp_path):
    items = [
        item(0, "2+2?", "4", 1.0),
        item(1, "2+2?", "5\n\u2028", 0),
        item(2, "1+1?", "2", 1.0, "{'ground_truth': '\\\\frac{4}{2}', 'subject': 'algebra'}"),
        item(3, "2+2?", "four", 0.5, "None"),
        item(4, [{"type": "image"}], "x", 0.0, "{'no': tensor([1])}"),
    ]
    path = save(tmp_path, *items)
    assert read(path) == [
        ScoredResponse("2+2?", "4", 1.0, 0, "4"),
        ScoredResponse("2+2?", "5\n\u2028", 0.0, 1, "4"),
        ScoredResponse("1+1?", "2", 1.0, 0, r"\frac{4}{2}"),
        ScoredResponse("2+2?", "four", 0.5, 2, None),
        ScoredResponse('[{"type": "image"}]', "x", 0.0, 0, None),
    ]
    assert read(tmp_path) == read(str(path))


def without(key):
    return {k: v for k, v in item(1, "2+2?", "4", 1.0).items() if k != key}


def rewarded(reward):
    """Several parts, no number, or one with which no mean is one."""
    return item(1, "2+2?", "4", reward)


GOOD = item(0, "2+2?", "4", 1.0)
BROKEN = {
    "is not JSON": [json.dumps({"evaluation_data": [GOOD]})[:-20], "[" * 100_000],
    "JSON object": ["[]"],
    "evaluation_data: ": ["{}", '{"evaluation_data": []}', '{"evaluation_data": 3}'],
    r"evaluation_data\.1: ": ["text"],
    **{rf"evaluation_data\.1\.{key}: ": [without(key)] for key in ("prompt", "response")},
    r"evaluation_data\.1\.extra_env_info: ": [without("extra_env_info")],
    r"evaluation_data\.1\.reward: ": [
        without("reward"),
        *map(rewarded, [[1.0, 0.0], float("nan"), float("inf"), -float("inf"), 10**400, "1", None]),
    ],
}


@pytest.mark.parametrize(("said", "broken"), [(s, b) for s, each in BROKEN.items() for b in each])
def test_what_is_broken_is_named(tmp_path, said, broken):
    path = save(tmp_path, GOOD, broken)
    if "1" not in said:
        path.write_text(broken)
    with pytest.raises(ValueError, match=rf"evaluation_data\.json.*{said}.*interrupted"):
        read(path)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.json .*eval\.save_path"):
        read(tmp_path / "nowhere.json")

"""The config of an evaluation: every shipped one is valid, every mistake is said with its key."""

import subprocess
import sys
from pathlib import Path

import pytest
from says import Says

from nemo_algos import config
from nemo_algos.findings import ConfigError
from nemo_algos.lab.evals.benchmarks import BENCHMARKS
from nemo_algos.lab.evals.schema import parse_config

SHIPPED = Path(__file__).parents[3] / "examples" / "configs" / "eval"
NEEDED = {
    "countdown": ["model.run=runs/etr/exp_001"],
    "erpo_perturbed": [],
    "own": ["model.run=runs/etr/exp_001", "benchmarks.math.data=test.jsonl"],
    "nemo_rl": ["model.file=evaluation_data.json"],
}
ENDPOINT = {"engine": "endpoint", "url": "http://localhost/v1", "name": "m"}


def plain(model=ENDPOINT, **sections):
    return {"model": model, "benchmarks": {"math500": {}}, **sections}


def problems_of(written):
    with pytest.raises(ConfigError) as error:
        parse_config(written)
    return [str(problem) for problem in error.value.findings]


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid(path):
    overrides = NEEDED.get(path.stem, ["model.name=m"])
    if path.stem == "endpoint":
        overrides.append("benchmarks.math500={}")
    ready = parse_config(config.load(path, overrides))
    assert set(ready.chosen) <= set(BENCHMARKS)


def test_a_model_without_a_run_needs_its_name_alone():
    ready = parse_config(
        plain({"policy": {"model_name": "Qwen/Qwen2.5-3B", "precision": "bfloat16"}})
    )
    policy = ready.model.policy
    assert (policy.model_name, policy.precision) == ("Qwen/Qwen2.5-3B", "bfloat16")
    assert policy.generation.max_new_tokens == 1024  # math.yaml's
    said = Says("model.policy.modelname: model_name")
    assert said in problems_of(plain({"policy": {"modelname": "m"}}))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (plain({"engine": "endpont"}), ["model.engine: 'endpont' endpoint"]),
        (
            plain({**ENDPOINT, "nam": "x"}, sampling={"samples": 0}, metrics={"seeds": 1}),
            ["model.nam: name", "sampling.samples: 0", "metrics.seeds: seed"],
        ),
        (plain({"engine": "endpoint", "url": "u"}), ["model.name: missing"]),
        (plain({"engine": "nemo_rl"}), ["model.file: missing"]),
        (plain({}), ["model: model.run model.policy"]),
        (plain({"step": 3, "policy": {}}), ["model.policy.model_name: null"]),
        (
            plain(sampling={"sample": 4, "top_p": 1.5}),
            ["sampling.top_p: 1 1.5", "sampling.sample: samples"],
        ),
        (plain({"run": "r"}, sampling={"temperature": 0.0}), ["sampling.temperature: 0"]),
        (plain({"run": "r"}, sampling={"logprobs": True}), ["sampling.logprobs: endpoint"]),
        (
            plain(sampling={"perturbation": {"tokens": "any"}}),
            ["sampling.perturbation: model.engine=local"],
        ),
        (plain(benchmarks={}), ["benchmarks: one"]),
        (plain(benchmarks={"math500": None}), ["benchmarks: one"]),
        (plain(benchmarks={"math50": {}}), ["benchmarks: math50 math500"]),
        (plain(benchmarks={"math500": {"sed": 1}}), ["benchmarks.math500.sed: seed"]),
        (plain(metrics={"judge": {"url": "http://h:1/v1"}}), ["metrics.judge.name: missing"]),
        (plain(metrics={"judge": {"name": "j", "urls": "x"}}), ["metrics.judge.urls: url"]),
        (
            plain(metrics={"judge": {"name": "j", "url": "http://a:b@c/v1"}}),
            ["metrics.judge.url: user password"],
        ),
    ],
)
def test_mistakes_are_said(written, said):
    found = problems_of(written)
    assert all(Says(line) in found for line in said), found


OWN = ["seed", "temperature", "top_p", "max_tokens", "logprobs", "stream", "model", "messages"]
OWN += ["prompt", "echo", "n"]  # what the client decides, and `model.extra` may not


@pytest.mark.parametrize(
    ("model", "said"),
    [
        *(({"extra": {key: 1}}, f"model.extra: {key}") for key in OWN),
        ({"extra": {"n": 2}}, "model.extra: n sampling.samples"),
        ({"extra": {"x": float("nan")}}, "model.extra: JSON"),
        ({"completions": {"prompt": None, "x": 1}}, "model.completions: YAML"),
        ({"completions": ["prompt"]}, "model.completions: YAML"),
        ({"url": "http://h/v1?key=x"}, "model.url: user password"),
        ({"url": "http://127.0.0.1:port/v1"}, "model.url: port http://localhost:8000/v1"),
        ({"url": "localhost:8000/v1"}, "model.url: localhost:8000/v1 http://localhost:8000/v1"),
        ({"completions": "Q: {problem}"}, "model.completions: {prompt}"),
        ({"api_key_env": "NOWHERE_SET"}, "model.api_key_env: variable"),
    ],
)
def test_what_the_client_decides_is_not_overridden(model, said):
    (problem,) = problems_of(plain({**ENDPOINT, **model}))
    assert problem == Says(said)


def test_two_limits_are_one_too_many():
    model = {**ENDPOINT, "extra": {"max_completion_tokens": 9}}
    assert parse_config(plain(model)).model.extra == {"max_completion_tokens": 9}
    assert problems_of(plain(model, sampling={"max_tokens": 9})) == [
        Says("sampling.max_tokens model.extra.max_completion_tokens")
    ]


def test_the_template_of_the_prompt_alone_needs_no_quotes():
    """The shell's {prompt} is YAML's {prompt: null}."""
    written = config.load(
        SHIPPED / "quatro.yaml",
        ["model.name=m", "model.completions={prompt}", "model.extra={k: 1}"],
    )
    assert parse_config(written).model.completions == "{prompt}"


@pytest.mark.parametrize(
    "url", ["http://h/v1", "https://h.org:8/v1/", "http://[::1]:8000/v1", "http://a_b:80"]
)
def test_urls(url):
    assert parse_config(plain({**ENDPOINT, "url": url})).model.url == url


def test_an_inherited_benchmark_can_be_left_out():
    ready = parse_config(
        config.load(SHIPPED / "erpo.yaml", ["model.name=m", "benchmarks.amc23=null"])
    )
    assert sorted(ready.chosen) == ["aime24", "aime25", "minerva_math"]
    assert ready.chosen["minerva_math"].problems == 40


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ({"run": "runs/etr/exp_001"}, "runs/etr/exp_001/eval"),
        ({"run": "runs/etr/exp_001", "step": 0}, "runs/etr/exp_001/eval-step-0"),
        ({**ENDPOINT, "name": "Qwen/Qwen2.5-Math-7B"}, "runs/eval/Qwen--Qwen2.5-Math-7B"),
        ({"engine": "nemo_rl", "file": "results/a.json"}, "runs/eval/results--a"),
    ],
)
def test_where_it_is_kept(model, folder):
    assert str(parse_config(plain(model)).folder) == folder
    assert str(parse_config(plain(model, out="here")).folder) == "here"


LONG = "a" * 5000


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (plain(out=LONG), "out"),
        (plain({"run": LONG}), "model.run"),
        (plain({"run": f"runs/{LONG[:256]}/x"}), "model.run"),
        (plain({"policy": {"model_name": LONG}}), "model"),
        (plain({"engine": "nemo_rl", "file": LONG}), "model.file"),
        (plain({"engine": "nemo_rl", "file": "b/" * 150}), "out"),
        (plain({**ENDPOINT, "name": LONG}), "out"),
        *(
            (plain(benchmarks={"math500": {key: LONG}}), f"benchmarks.math500.{key}")
            for key in ("data", "databases", "verifier")
        ),
    ],
)
def test_names_that_no_path_can_hold(written, key):
    (problem,) = problems_of(written)
    assert problem.startswith(f"{key}: ") and "long" in problem and len(problem) < 300


def test_a_wrong_config_is_reported_before_torch_or_scikit_learn_are_imported():
    code = (
        "import sys; from nemo_algos.cli import app\n"
        "try: app(['eval', 'eval/quatro.yaml', 'model.nam=x'])\n"
        "finally: print({'torch', 'sklearn', 'httpx', 'openai'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "set()\n")
    assert "model.nam: " in done.stderr

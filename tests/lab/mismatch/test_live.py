"""Probes of a live sampler: a small server that computes what vLLM's would say."""

import json
from itertools import pairwise

import numpy as np
import pytest
from commands import invoke
from completions import server
from says import Says

from nemo_algos.engines.dumps.dump import from_arrays, write

WORDS, PROMPT, WIDTH, ROWS = 40, 6, 12, 20
BASE = np.random.default_rng(0).standard_normal((WORDS, WORDS)) * 2
OTHER = BASE + 0.1 * np.random.default_rng(1).standard_normal((WORDS, WORDS))
PROMPT_ONLY = "prompt_logprobs"


def logprobs(last, table=BASE, heat=1.0, kept=1.0):
    z = table[last] / heat
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= kept]] = 0
    with np.errstate(divide="ignore"):
        return np.log(p / p.sum())


class Vllm:
    """faults: raw (log-probs before the parameters), heat, kept (defaults), idle, batch, cache."""

    def __init__(self, **faults):
        self.faults, self.caches, self.adapters = faults, set(), ["base", "lora"]

    def models(self):
        return 200, {"data": [{"id": name} for name in self.adapters]}

    def completions(self, body):
        rows = body["prompt"]
        return 200, {"choices": [self.choice(i, row, body) for i, row in enumerate(rows)]}

    def choice(self, index, row, body):
        table = OTHER if body["model"] == "lora" and "idle" not in self.faults else BASE
        if self.faults.get("batch") and len(body["prompt"]) > 1:
            table = table + self.faults["batch"] * OTHER
        found = {"index": index}
        if PROMPT_ONLY in body:
            at = [{str(b): {"logprob": logprobs(a, table)[b]}} for a, b in pairwise(row)]
            return found | {PROMPT_ONLY: [None, *at]}
        heat = body.get("temperature", self.faults.get("heat", 1.0)) or 1.0
        kept = body.get("top_p", self.faults.get("kept", 1.0))
        if "raw" in self.faults:
            heat, kept = 1.0, 1.0
        if salt := body.get("cache_salt"):
            stale = (salt, tuple(row)) in self.caches
            self.caches.add((salt, tuple(row)))
            table = BASE - 2 * OTHER if stale and "cache" in self.faults else table
        values = logprobs(row[-1], table, heat, kept)
        top = {f"token_id:{i}": max(values[i], -9999.0) for i in np.argsort(-values)[:20]}
        chosen = [float(values.max()) if "cache_salt" not in body else float(values[3])]
        return found | {"logprobs": {"top_logprobs": [top], "token_logprobs": chosen}}


def served(vllm):
    return server(vllm.completions, vllm.models)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    tokens = np.random.default_rng(2).integers(0, WORDS, (ROWS, PROMPT + WIDTH))
    mask = np.arange(PROMPT + WIDTH) >= np.full((ROWS, 1), PROMPT)
    values = np.zeros(tokens.shape)
    for i, at in np.argwhere(mask):
        values[i, at] = logprobs(tokens[i, at - 1])[tokens[i, at]]
    sides = {"sampler_logprobs": values, "trainer_logprobs": values}
    given = {"tokens": tokens, "mask": mask, "prompt_length": PROMPT, **sides}
    path = tmp_path_factory.mktemp("live") / "step.npz"
    write(path, from_arrays(given))
    return path


def asked(file, url, *more):
    """The command's end and what it prints."""
    return invoke("mismatch", file, "--sampler", url, *more)


def probes(file, **faults):
    with served(Vllm(**faults)) as (url, _):
        result = asked(file, url, "--json")
    assert result.exit_code in (0, 1), result.output
    found = {probe["probe"]: probe for probe in json.loads(result.output)["probes"]}
    assert result.exit_code == any(probe["fault"] for probe in found.values())
    return found


@pytest.mark.parametrize(
    ("faults", "found", "said"),
    [
        ({}, set(), {"logprobs_mode": "after 0.50"}),
        ({"raw": True}, set(), {"logprobs_mode": "before 1.00"}),
        ({"idle": True}, {"adapter"}, {"adapter": "lora base 0"}),
        ({"batch": 0.5}, {"batch", "recorded"}, {}),
        ({"cache": True}, {"prefix_cache"}, {}),
        ({"heat": 0.6}, {"defaults"}, {"defaults": "0.60"}),
        ({"heat": 1.3, "kept": 0.9}, {"defaults"}, {"defaults": "1.30"}),
        ({"heat": 0.6, "raw": True}, set(), {}),
    ],
)
def test_each_probe_finds_its_fault_alone_and_reads_back_the_temperature(faults, found, said, file):
    seen = probes(file, **faults)
    assert {name for name, probe in seen.items() if probe["fault"]} == found
    assert {*seen} == {
        *("recorded", "batch", "prefix_cache", "logprobs_mode", "defaults", "adapter")
    }
    assert {name: seen[name]["text"] for name in said} == {k: Says(v) for k, v in said.items()}


def test_top_p_is_read_back(file):
    row = from_arrays(dict(np.load(file))).tokens[0, PROMPT - 1]
    p = np.sort(np.exp(logprobs(row)))[::-1]
    kept = p[: int((np.cumsum(p) - p < 0.9).sum())].sum()
    found = probes(file, kept=0.9)
    assert {name for name, probe in found.items() if probe["fault"]} == {"defaults"}
    assert f"{kept:.2f}" in found["defaults"]["text"]


def test_the_command_prints_each_probe(file):
    with served(Vllm(idle=True)) as (url, _):
        result = asked(file, url)
    lines = [line for line in result.output.splitlines() if line.startswith("adapter, ")]
    assert result.exit_code == 1 and lines == [Says("adapter fault lora base 0")]


class Broken(Vllm):
    def __init__(self, **answers):
        super().__init__()
        self.answers = answers

    def models(self):
        return self.answers.get("models") or super().models()

    def completions(self, body):
        return self.answers.get("completions") or super().completions(body)


@pytest.mark.parametrize(
    "answers",
    [
        {"models": (404, {"error": "x"})},
        {"models": (200, {"data": []})},
        {"models": (200, [])},
        {"models": (200, {"data": [{}, 3, {"id": 3}]})},
        {"models": (200, b"\xff")},
        {"models": (200, b"[" * 100_000)},
        {"completions": (400, {"error": "no ids"})},
        {"completions": (200, {"choices": []})},
        {"completions": (200, {"choices": [{}] * 16})},
        {"completions": (200, {"choices": [{"text": ""}]})},
        {"completions": (200, {"choices": "x"})},
        {"completions": (200, {"choices": [3]})},
        {"completions": (200, {"choices": [{"index": "x"}] * 16})},
        {"completions": (200, {"choices": [{PROMPT_ONLY: [None, {"1": None}]}]})},
    ],
)
def test_an_answer_that_is_none_is_refused_in_one_line(answers, file):
    with served(Broken(**answers)) as (url, _):
        result = asked(file, url)
    assert result.exit_code == 2 and result.output.count("\n") == 1, result.output
    assert "/v1" in result.output


@pytest.mark.parametrize("url", ["localhost:8000", "http://127.0.0.1:9/v1", "file:///etc/passwd"])
def test_a_url_that_is_none_is_refused(url, file):
    result = asked(file, url)
    assert result.exit_code == 2 and result.output.count("\n") == 1


def test_the_key_is_sent_and_not_shown(file, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key-123456")
    with served(Broken(models=(401, {"error": "secret-key-123456 is wrong"}))) as (url, _):
        result = asked(file, url)
    assert result.exit_code == 2 and "secret-key" not in result.output

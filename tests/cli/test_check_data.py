"""`nemo-algos check --data`: wrong inputs, and what its status says."""

import json

import pytest
import releases

from nemo_algos.preflight.check.data import environment
from nemo_algos.preflight.check.data.verdict import Verdict
from tests.commands import invoke

RECIPE = "recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml"


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """A folder that reads as NeMo-RL's; nothing is built."""
    releases.write(tmp_path)
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "python", lambda: pytest.fail("an environment was built"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["etr.yaml", "--data"], "engine: nemo_rl"),
        ([RECIPE, "--data", "--nemo-rl", "nowhere/here"], "nowhere/here"),
        ([RECIPE, "--data", "--rows", "nowhere.jsonl"], "nowhere.jsonl"),
        ([RECIPE, "--rows", "nowhere.jsonl"], "--data"),
        (["nope.yaml", "--data"], "nope.yaml"),
    ],
)
def test_a_wrong_input_is_named_and_ends_with_2(words, said):
    done = invoke("check", *words)
    assert done.exit_code == 2 and said in done.output


def test_a_mistake_that_check_names_ends_it_before_an_environment():
    done = invoke("check", RECIPE, "policy.lr=1", "--data")
    assert done.exit_code == 1 and "policy.lr" in done.output and "not tried" in done.output


@pytest.mark.parametrize(("outcome", "status"), [("passed", 0), ("unchecked", 0), ("failed", 1)])
def test_the_status_is_1_where_anything_failed(outcome, status, monkeypatch):
    monkeypatch.setattr(environment, "check", lambda *_: [Verdict("data", outcome, "seen")])
    done = invoke("check", RECIPE, "--data", "--json")
    assert done.exit_code == status
    tried = [Verdict(**one) for one in json.loads(done.stdout)["data"]]
    assert [v.stage for v in tried] == ["folders", "folders", "data"]


def test_a_program_that_ends_with_an_error_is_a_failure(tmp_path, monkeypatch):
    """Its last exception is named, and its log shown."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho Traceback\necho ImportError: no ray\necho after\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(environment, "python", lambda: broken)
    (found,) = environment.check({}, tmp_path)
    assert found.outcome == "failed" and "ImportError: no ray" in found.message
    assert found.details["lines"].endswith("after")

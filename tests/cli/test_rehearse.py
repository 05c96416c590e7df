"""`nemo-algos rehearse` and `slurm --rehearse`: wrong inputs, and what a failure holds back."""

import json

import pytest

from nemo_algos.preflight.rehearsal import machine, run
from nemo_algos.preflight.rehearsal.verdict import Verdict
from tests.commands import invoke

RECIPE = "recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml"


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """A folder that looks like NeMo-RL's; nothing is built."""
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl" / "__init__.py").touch()
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "is_built", lambda: False)
    monkeypatch.setattr(machine, "build", lambda: pytest.fail("an environment was built"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["etr.yaml"], "engine: nemo_rl"),
        ([RECIPE, "--only", "rewards,stak"], "stak"),
        ([RECIPE, "--nemo-rl", "nowhere"], "nowhere"),
        ([RECIPE, "--html", "no/where.html"], "no/where.html"),
        (["nope.yaml"], "nope.yaml"),
        ([RECIPE, "--steps", "1"], "--steps"),
    ],
)
def test_a_wrong_input_is_named_and_ends_with_2(words, said):
    done = invoke("rehearse", *words)
    assert done.exit_code == 2 and said in done.output


def test_what_needs_no_environment_builds_none():
    done = invoke("rehearse", RECIPE, "--only", "judge,places", "--json")
    found = [Verdict(**one) for one in json.loads(done.output)]
    assert done.exit_code == 0 and {v.stage for v in found} == {"judge", "places"}


def test_every_warning_of_check_is_said():
    done = invoke("rehearse", RECIPE, "--only", "judge", "data.add_bos=true", "--json")
    found = [Verdict(**one) for one in json.loads(done.output)]
    assert ("warning", "data.add_bos") in [(v.outcome, v.key) for v in found]


def test_a_mistake_that_check_names_ends_it_before_an_environment():
    done = invoke("rehearse", RECIPE, "policy.lr=1")
    assert done.exit_code == 1 and "policy.lr" in done.output and "FAIL" in done.output


@pytest.mark.parametrize(("outcome", "status"), [("passed", 0), ("unchecked", 0), ("failed", 1)])
def test_the_status_is_1_where_anything_failed(outcome, status, monkeypatch):
    monkeypatch.setattr(machine, "is_built", lambda: True)
    monkeypatch.setattr(run, "rehearse", lambda *_: [Verdict("model", outcome, "seen")])
    assert invoke("rehearse", RECIPE).exit_code == status

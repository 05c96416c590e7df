"""The numbers that `nemo-algos check` proposes: with each of them, the finding is gone."""

import re

import pytest
from mistakes import MISTAKES
from test_check import path_of

from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.rule import divisors, near

NUMBERS = re.compile(r"Set it to ((?:\d+, )*\d+(?: or \d+)?)[.,]")


def test_the_nearest_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert near(5, divisors(12)) == "3, 4 or 6"
    assert near(1, [1]) == "1"


def found(config, overrides):
    return [f for f in check(path_of(config), overrides, "main") if f.severity != "note"]


def proposals():
    for mistake in MISTAKES:
        for finding in found(mistake.config, mistake.overrides):
            numbers = NUMBERS.search(finding.message)
            if numbers and finding.path == mistake.path:
                for number in re.findall(r"\d+", numbers[1]):
                    yield pytest.param(mistake, finding, number, id=f"{mistake.rule}-{number}")


@pytest.mark.parametrize(("mistake", "finding", "number"), [*proposals()])
def test_a_proposed_number_is_not_wrong_in_the_same_way(mistake, finding, number):
    changed = [*mistake.overrides, f"{finding.path}={number}"]
    after = [f for f in found(mistake.config, changed) if f.path == finding.path]
    said = finding.message.partition("Set it to")[0]
    assert not [f for f in after if f.message.startswith(said)]


def test_seven_ranks_divide_no_step_of_512():
    (said,) = [f for f in found("nemo_rl.yaml", ["cluster.gpus_per_node=7"]) if "7" in f.message]
    assert "multiple of the 7" in said.message and "grpo.num_prompts_per_step" in said.message

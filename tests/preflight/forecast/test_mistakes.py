"""Mistakes of meaning are named at their key, and what is right is left alone (mistakes.yaml)."""

from pathlib import Path

import pytest
import yaml
from matrix import some_of
from omegaconf import OmegaConf
from releases import MAIN

from nemo_algos.config import apply_overrides, find, read
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check.judge import judge

ROWS = yaml.safe_load((Path(__file__).parent / "mistakes.yaml").read_text())
HURT = [row for row in ROWS if row["hurts"]]
RIGHT = [row for row in ROWS if not row["hurts"]]
# e1-03: the method decides that key, so that the mistake does not come about
MISSED = {"d1-05", "d1-51", "e1-03", "g1-15", "g1-39", "g1-45"}
# keys of NeMo-RL that the method decides, a warning of before (its trainer's filters), a length
# that is never reached, and k1
OURS = {"c1-19", "c2-05", "c7-12", "d1-08", "d1-14", "d1-15"}
OURS |= {"e1-54", "e1-55", "e1-56", "e1-62", "e1-63"}


def findings(name, overrides):
    if name.startswith("examples/configs/"):
        name = name.removeprefix("examples/configs/")
        base = {"engine": "nemo_rl", "method": {"name": "grpo"}, "nemo_rl": {"config": name}}
        written = OmegaConf.create(base)
    else:
        written = read(find(name))
    try:
        found = judge(apply_overrides(written, overrides), MAIN)[1]
    except ConfigError as error:
        found = error.findings
    return {f for f in found if f.severity != "note"}


def points_at(path, key):
    return path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.")


def of_override(row):
    """What is said of the mistake alone."""
    before = {(f.path, f.severity) for f in findings(row["base"], [])}
    after = findings(row["base"], row["overrides"])
    return [f for f in after if (f.path, f.severity) not in before]


@pytest.mark.parametrize("row", some_of(HURT, 16), ids=lambda row: row["id"])
def test_a_mistake_is_named_at_its_key(row):
    keys = [key.lstrip("+") for key in row["keys"]]
    named = any(points_at(f.path, key) for f in of_override(row) for key in keys)
    assert named is (row["id"] not in MISSED)


@pytest.mark.parametrize(
    "row", some_of([r for r in ROWS if not r["hurts"]], 5), ids=lambda r: r["id"]
)
def test_what_is_right_is_left_alone(row):
    assert bool(of_override(row)) is (row["id"] in OURS)


def test_nine_of_ten_are_named():
    assert (len(HURT), len(RIGHT)) == (266, 84)
    assert len(MISSED) <= 0.1 * len(HURT)

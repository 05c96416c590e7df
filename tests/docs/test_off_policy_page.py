"""docs/off_policy.md: its presets and refusals are the code's."""

from pathlib import Path

import pytest

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.riders.correction import OPTIONS, PRESETS
from nemo_algos.algorithms.riders.terms import TERMS
from nemo_algos.config import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "off_policy.md").read_text()
KEYS = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
KEYS += ("bypass_mode", "loss_type")


def line(name):
    """A preset's row of the table."""
    cells = (str(PRESETS[name].get(key, "")).lower() for key in KEYS)
    return f"| `{name}` | " + " | ".join(cells) + " |"


def test_the_table_of_presets():
    start = PAGE.index("| preset |")
    table = PAGE[start : PAGE.index("\n\n", start)].splitlines()
    assert table[0] == "| preset | " + " | ".join(f"`{key}`" for key in KEYS) + " |"
    assert table[2:] == [line(name) for name in PRESETS]


def test_every_kind_of_rejection_is_named():
    for pool in {option.rpartition("_")[0] for option in OPTIONS}:
        assert f"`{pool}_k" in PAGE


def refused(block):
    try:
        build(block, {"bypass_mode": True})
    except ConfigError:
        return True
    return False


def test_what_bypass_mode_refuses_is_in_its_table():
    start = PAGE.index("| refused with `old_policy: sampler` |")
    table = PAGE[start : PAGE.index("\n\n", start)]
    rows = [row.split("|")[1].replace(",", " ").split() for row in table.splitlines()]
    for name in METHODS:
        named = any(name in row for row in rows)
        assert refused(name) == named, name
    for name in TERMS:
        block = {"name": "grpo", "terms": {name: {}}}
        assert refused(block) == any(name in row for row in rows), name
    assert not refused({"name": "spo", "forgetting": "constant"})


@pytest.mark.parametrize("preset", PRESETS)
def test_the_method_that_the_page_names_takes_the_preset(preset):
    method = {"name": "gpg", "advantages": "grpo"} if "_pg_" in preset else "etr"
    build(method, {"preset": preset})

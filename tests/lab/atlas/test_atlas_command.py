"""`nemo-algos atlas`: goes on where it stopped, and writes the table and the cards."""

import csv
import math
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.lab.atlas import run, svg
from nemo_algos.lab.atlas.design import UPDATES, cells

LAST = [*cells()][-1]


def test_the_command_computes_what_is_missing(tmp_path):
    stored = {"angle": 12.5, "size": 2.0, "kl": 1e-3, "error": math.nan}
    there = [(c, n) for c in cells() if c != LAST for n in UPDATES[c.updates]]
    rows = [{"method": "grpo", **c._asdict(), "update": n, **stored} for c, n in reversed(there)]
    path = tmp_path / "atlas.csv"
    path.write_text(run.HEAD + "".join(map(run.line, rows)) + "grpo,small,0.3,1")  # a kill
    done = CliRunner().invoke(app, ["atlas", str(tmp_path), "--method", "grpo"])
    assert done.exit_code == 0, done.output
    found = [*csv.DictReader(path.read_text().splitlines())]
    assert [r["angle"] for r in found[:-3]] == ["12.5"] * len(there)
    assert found[0]["update"] == "1" and found[0]["error"] == ""
    assert [(r["sampler"], r["correction"]) for r in found[-3:]] == [LAST[4:6]] * 3
    again = run.compute("grpo", LAST)
    assert [r["kl"] for r in found[-3:]] == [f"{r['kl']:.4g}" for r in again]
    card = ElementTree.parse(tmp_path / "grpo.svg")
    points = [e for e in card.iter() if e.tag.endswith("circle")]
    assert len(points) == 3 * 9  # of size, angle and KL: these rows have neither gain nor second
    assert (tmp_path / "all_kl.svg").exists()


def test_an_unknown_method_is_refused_before_anything_is_computed(tmp_path):
    done = CliRunner().invoke(app, ["atlas", str(tmp_path / "x"), "--method", "gpro"])
    assert done.exit_code == 2 and not (tmp_path / "x").exists()


VALUES = [(1e-12, "0"), (None, ""), (math.nan, ""), (3, "3"), (0.123456, "0.1235")]


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_how_a_value_is_printed(value, text):
    assert run.printed(value) == text


def test_ticks_are_round_and_hold_the_values():
    assert svg.ticks(0, 0.1022, False) == pytest.approx([0, 0.05, 0.1, 0.15])
    assert svg.ticks(-0.03, 0.02, False) == pytest.approx([-0.04, -0.02, 0, 0.02])
    assert svg.ticks(2e-4, 0.034, True) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert svg.ticks(0.8, 1.4, True) == pytest.approx([0.1, 1, 10])

"""`nemo-algos atlas`: goes on where it stopped, and writes the table and the cards."""

import csv
import json
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.lab.atlas import run
from nemo_algos.lab.atlas.design import Cell, cells

LAST = [*cells()][-1]


def test_the_command_computes_what_is_missing(tmp_path):
    stored = {"update": 1, "angle": 12.5, "size": 2.0, "kl": 1e-3, "error": None}
    lines = [{"arm": "grpo", "cell": [*c], "rows": [stored]} for c in cells() if c != LAST]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / run.LINES).write_text(text + '{"arm": "gr')  # a kill
    done = CliRunner().invoke(app, ["atlas", str(tmp_path), "--method", "grpo"])
    assert done.exit_code == 0, done.output
    rows = [*csv.DictReader((tmp_path / run.TABLE).read_text().splitlines())]
    assert [r["angle"] for r in rows[:-3]] == ["12.5"] * len(lines)
    own = [r for r in rows if r["correction"] == LAST.correction and r["sampler"] == LAST.sampler]
    assert [r["update"] for r in own] == ["1", "4", "10"]
    again = run.compute("grpo", LAST)
    assert [r["kl"] for r in own] == [f"{r['kl']:.4g}" for r in again]
    table = run.read(tmp_path / run.TABLE)
    assert table["grpo", Cell(), 1] == {"angle": 12.5, "size": 2.0, "kl": 1e-3}
    card = ElementTree.parse(tmp_path / "grpo.svg")
    points = [e for e in card.iter() if e.tag.endswith("circle")]
    assert len(points) == 2 * 9  # of size and angle: these rows have no tenth update
    assert (tmp_path / "all_kl.svg").exists()


def test_an_unknown_method_is_refused_before_anything_is_computed(tmp_path):
    done = CliRunner().invoke(app, ["atlas", str(tmp_path / "x"), "--method", "gpro"])
    assert done.exit_code == 2 and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("value", "text"), [(1e-12, "0"), (None, ""), (3, "3"), (0.123456, "0.1235")]
)
def test_how_a_value_is_printed(value, text):
    assert run.printed(value) == text

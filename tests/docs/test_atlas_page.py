"""docs/atlas.md: each number of its findings is a cell of the table, which this code computes."""

import math
import re
from pathlib import Path

import pytest

from nemo_algos.config import method_name
from nemo_algos.lab.atlas import cards, measure, run
from nemo_algos.lab.atlas.design import ARMS, UPDATES, Cell, cells
from nemo_algos.lab.atlas.measure import algorithm_of
from nemo_algos.lab.atlas.world import WORLDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "atlas.md").read_text()
TABLE = run.read(DOCS / "atlas" / "atlas.csv")
FOUND = ("Which method when", "What four papers claim")
# `kl: etr, pass_rate 0.03, update 10`
REFERENCE = re.compile(r"`(?!old_policy)(\w+): ([\w+.]+)((?:, [a-z_]+ [^,`]+)*)`")
BOLD = re.compile(r"\*\*(-?[\d.]+)\*\*")
KINDS = {k: type(v) for k, v in Cell._field_defaults.items()}


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def items(title):
    """The numbered findings of a section, each with the lines below it."""
    return re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z)", section(title), re.MULTILINE | re.DOTALL)


def value(name, arm, keys):
    pairs = [key.split(" ", 1) for key in keys.split(", ")[1:]]
    given = {k: int(v) if k == "update" else KINDS[k](v) for k, v in pairs}
    update = given.pop("update", 1)
    return float(TABLE[arm, Cell(**given), update][name])


ITEMS = [(title, item) for title in FOUND for item in items(title)]


@pytest.mark.parametrize(("title", "item"), ITEMS)
def test_every_number_is_the_tables(title, item):
    """In the order of the references, rounded to three digits."""
    numbers = [float(x) for x in BOLD.findall(item)]
    expected = [value(*found) for found in REFERENCE.findall(item)]
    assert numbers == [float(f"{x:.3g}") for x in expected] and numbers
    rest = BOLD.sub("", REFERENCE.sub("", item))
    settings = {x for _, _, keys in REFERENCE.findall(item) for x in re.findall(r"[\d.]+", keys)}
    assert {*re.findall(r"\d+\.\d+", rest)} <= settings | {"0.2", "0.01", "0.1"}


def test_the_findings_are_there():
    assert [len(items(title)) for title in FOUND] == [10, 4]
    abstract = section("Abstract").partition("![")[0].strip()
    assert len(abstract.splitlines()) <= 10
    assert re.findall(r"[\d.]*\d", abstract) == [str(len(ARMS))]  # no result that no cell holds


def test_the_table_is_whole():
    """Every arm in every cell, but for corrections that its method refuses."""
    lacking = run.missing([*ARMS], TABLE)
    assert lacking == [(a, c) for a, c in lacking if algorithm_of(ARMS[a], c.correction) is None]
    assert {key[:2] for key in TABLE} == {(a, c) for a in ARMS for c in cells()} - {*lacking}
    assert len(lacking) == 24
    assert (DOCS / "atlas" / "atlas.csv").stat().st_size < 1e6


@pytest.mark.parametrize("arm", ["quatro", "cispo", "erpo+etr", "ema_baseline"])
def test_cells_computed_again_have_the_tables_digits(arm):
    cell = Cell(group=2)
    for row in run.compute(arm, cell):
        want = TABLE[arm, cell, row["update"]]
        assert {k: run.printed(row.get(k)) for k in run.VALUES} == {k: want[k] for k in run.VALUES}


def test_every_method_has_its_card():
    names = {f"{method_name(arm)}.svg" for arm in ARMS} | {"all_size.svg", "all_kl.svg"}
    assert {path.name for path in (DOCS / "atlas").glob("*.svg")} == names


def test_the_cards_are_drawn_from_the_table(tmp_path):
    cards.draw_all([*ARMS], TABLE, tmp_path)
    for arm in ARMS:
        cards.draw(arm, TABLE, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (DOCS / "atlas" / path.name).read_text(), path.name


def test_the_design_on_the_page_is_the_codes():
    text = re.sub(r"\s+", " ", PAGE)
    size = math.comb(7 + 8 - 1, 8)
    facts = (
        f"{len(ARMS)} methods", f"{len([*cells()])} cells", f"{size:,} batches",
        f"{measure.DRAWS:,} batches are drawn", f"{measure.FEW} batches", f"{measure.STEP:g} nats",
        f"{measure.VERSION:g} nats",
    )  # fmt: skip
    assert [fact for fact in facts if fact not in text] == []
    assert all(f"| `{name}` |" in PAGE for name in WORLDS)
    assert all(f"`{name}`" in PAGE for name in run.VALUES)
    assert set(UPDATES) == {10, 40}

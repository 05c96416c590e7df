"""The manifests: their numbers are the papers', their averages add up, their runs resolve."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from nemo_algos.config import ConfigError, apply_overrides, find, load, read, validate
from nemo_algos.lab.evals.benchmarks.registry import BENCHMARKS
from nemo_algos.lab.replicate import manifest as manifests
from nemo_algos.lab.replicate.found import HARDNESS
from nemo_algos.lab.replicate.manifest import TRAINING, Paper
from nemo_algos.lab.replicate.plan import Costs
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.snapshot import VERSIONS
from nemo_algos.preflight.check.snapshot import load as release
from tests.says import Says

ROOT = Path(__file__).parents[3]
TEXTS = [folder / "shared" / "papers" for folder in ROOT.parents]
PAPERS = {name: manifests.paper(name) for name in manifests.names()}
ITEMS = [(paper, name) for paper, known in PAPERS.items() for name in known.items]
ROWS = [
    pytest.param(paper, name, block, row, id=f"{paper}-{name}-{block.title}-{row.label}")
    for paper, name in ITEMS
    for block in PAPERS[paper].items[name].blocks
    for row in block.rows
    if row.printed
]
# every table and figure of each paper, by the paper's own numbers
CONTENTS = {
    "etr": "figure1 figure2 figure3 figure4 figure5 figure6 figure7 figure8 table1 table2",
    "quatro": "figure1 figure2 figure3 figure4a figure4b figure4c figureI figureII figureIII "
    "figureIV figureV table1 table2 table3 table4 tableI tableII tableIII",
    "erpo": "figure1a figure1b figure2 figure3a figure3b figure3c figure4 figure5a figure5b "
    "figure5c table1 table2 table3",
    "apmpo": "figure1a figure1b figure1c figure2 figure3 figure4a figure4b figure4c figure4d "
    "figure4e figure5 table1 table2 table3 table4 table5 table6 table7 table8 table9 table10",
}


def text_of(paper):
    path = next((t / f"{paper}.txt" for t in TEXTS if (t / f"{paper}.txt").exists()), None)
    if path is None:
        pytest.skip("shared/papers is not at hand: the papers' texts are not in the repository")
    return path.read_text()


def numbers(line):
    return [float(x) for x in re.findall(r"(?<![\w.])\d*\.?\d+(?![\w.])", line.replace("±", " "))]


def in_order(wanted, line):
    there = iter(numbers(line))
    return all(any(x == number for x in there) for number in wanted)


@pytest.mark.parametrize("paper", CONTENTS)
def test_every_table_and_figure_is_there(paper):
    assert sorted(PAPERS[paper].items) == sorted(CONTENTS[paper].split())


@pytest.mark.parametrize(("paper", "name", "block", "row"), ROWS)
def test_printed_numbers_stand_in_one_line_of_the_paper(paper, name, block, row):
    printed = [x for x in row.printed if x is not None]
    assert any(in_order(printed, line) for line in text_of(paper).splitlines()), printed
    spread = [x for x in row.spread if x is not None]
    assert any(in_order(spread, line) for line in text_of(paper).splitlines()), spread


@pytest.mark.parametrize(("paper", "name"), ITEMS)
def test_numbers_of_sentences_stand_in_the_paper(paper, name):
    for sentence in PAPERS[paper].items[name].said:
        for number in re.findall(r"\d[\d,.]*\d|\d", sentence):
            assert number in text_of(paper), sentence


@pytest.mark.parametrize(("paper", "name", "block", "row"), ROWS)
def test_a_printed_average_follows_from_its_cells_or_is_a_misprint(paper, name, block, row):
    cells = block.cells(row)
    known = {(c.benchmarks, c.metric): c.printed for c in cells}
    for cell in (c for c in cells if len(c.benchmarks) > 1 and c.printed is not None):
        parts = [known.get(((benchmark,), cell.metric)) for benchmark in cell.benchmarks]
        if None in parts:
            continue
        digits = max(len(str(x).partition(".")[2]) for x in [*parts, cell.printed])
        if abs(sum(parts) / len(parts) - cell.printed) > 0.51 * 10**-digits:
            said = [m.says for m in PAPERS[paper].misprints if m.item == name]
            assert any(f"{cell.printed:g}" in sentence for sentence in said), (row.label, parts)


def test_a_curve_over_k_that_falls_is_a_misprint():
    blocks = PAPERS["quatro"].items["table3"].blocks
    fell = [
        (row.label, run, before, after)
        for first, second in pairwise(blocks)
        for row, other in zip(first.rows, second.rows, strict=True)
        for run, before, after in zip(first.columns, row.printed, other.printed, strict=True)
        if after < before
    ]
    assert [(label, before, after) for label, _, before, after in fell] == [
        ("OlympiadBench", 15.80, 11.32)
    ]
    assert any("11.32" in m.says for m in PAPERS["quatro"].misprints)


@pytest.mark.long
def test_every_run_resolves_on_both_releases():
    wrong, done = [], 0
    for paper, known in PAPERS.items():
        runs = dict.fromkeys(run for item in known.items.values() for run in item.needed_runs())
        for run in (r for r in runs if known.by_recipe(r)):
            written = apply_overrides(read(find(known.of(run)[0].recipe)), known.overrides(run))
            for version in VERSIONS:
                found = judge(written.copy(), release(version))[1]
                wrong += [(paper, run, version, f) for f in found if f.severity == "error"]
                done += 1
    assert not wrong and done > 180


@pytest.mark.parametrize("paper", PAPERS)
def test_every_run_is_planned_with_its_own_data(paper):
    known = PAPERS[paper]
    costs = Costs(known, None)
    runs = dict.fromkeys(run for item in known.items.values() for run in item.needed_runs())
    trained = [run for run in runs if known.by_recipe(run)]
    for run in trained:
        cost = costs.of(run)
        rows = known.data[known.of(run)[0].data[0]].rows
        assert cost.gpus > 0 and cost.hours > 0 and cost.fits, run
        assert cost.stated == bool(rows), run
    assert trained


@pytest.mark.parametrize("paper", PAPERS)
def test_every_run_that_trains_has_a_recipe(paper):
    known = PAPERS[paper]
    for item in known.items.values():
        for run in item.needed_runs():
            assert known.of(run)[0].recipe or not known.trains(run), run


@pytest.mark.parametrize(("paper", "name"), ITEMS)
def test_an_items_evaluations_have_its_benchmarks_and_samples(paper, name):
    known, item = PAPERS[paper], PAPERS[paper].items[name]
    configs = [known.evaluations[e] for e in item.evaluations]
    plain = [load(find(e.config), e.overrides) for e in configs]
    there = {b for p in plain for b, section in p["benchmarks"].items() if section is not None}
    cells = [c for c in item.cells() if c.benchmarks != (TRAINING,)]
    assert {b for c in cells for b in c.benchmarks} <= there <= {*BENCHMARKS}
    ks = [int(c.metric.partition("@")[2]) for c in cells if "@" in c.metric]
    assert max(ks, default=1) <= max((p["sampling"]["samples"] for p in plain), default=1)
    assert {c.metric[5:] for c in cells if c.metric.startswith("flip/")} <= {*HARDNESS}


ROW = {"label": "GRPO", "run": "m/grpo", "printed": [0.5]}
PAPER = {
    "title": "A paper",
    "claim": "none",
    "unit": "fraction",
    "models": {"m": {"base": "b"}},
    "methods": {"grpo": {"method": {"name": "grpo"}}},
    "evaluations": {"math": {"config": "eval/etr.yaml"}},
    "data": {},
    "items": {
        "table1": {
            "title": "t",
            "kind": "table",
            "evaluations": ["math"],
            "blocks": [{"columns": ["amc23 mean"], "rows": [ROW]}],
        }
    },
}


def with_block(**changed):
    item = PAPER["items"]["table1"]
    block = {**item["blocks"][0], **changed}
    return {**PAPER, "items": {"table1": {**item, "blocks": [block]}}}


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        (with_block(rows=[{**ROW, "run": "m/grop"}]), "grop grpo"),
        (with_block(rows=[{**ROW, "run": "mm/grpo"}]), "mm"),
        (with_block(columns=["amc24 mean"]), "amc24 amc23"),
        (with_block(columns=["amc23"]), "items.table1.blocks.0: BENCHMARK"),
        (with_block(rows=[{**ROW, "printed": [0.5, 0.6]}]), "items.table1.blocks.0: null"),
        (with_block(rows=[{"label": "x", "printed": [0.5]}]), "items.table1.blocks.0: run"),
        (with_block(row=[]), "items.table1.blocks.0.row: rows"),
        ({**PAPER, "misprints": [{"item": "tabel1", "says": "x"}]}, "tabel1 table1"),
    ],
)
def test_a_broken_manifest_is_said_with_the_nearest_name(plain, said):
    with pytest.raises(ConfigError) as raised:
        validate(Paper, plain)
    assert str(raised.value) == Says(said)


def test_a_manifest_that_is_right_is_read():
    (cell,) = validate(Paper, PAPER).items["table1"].cells()
    assert (cell.run, cell.benchmarks, cell.metric, cell.printed) == (
        "m/grpo",
        ("amc23",),
        "mean",
        0.5,
    )

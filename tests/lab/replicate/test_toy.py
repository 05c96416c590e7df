"""The toy: the manifest at countdown's scale, and one item of it end to end."""

import os
import re
from concurrent.futures import Executor, Future

import pytest

from nemo_algos.config import apply_overrides, find, load, read, resolve
from nemo_algos.lab.evals.schema import parse_config
from nemo_algos.lab.replicate import manifest as manifests
from nemo_algos.lab.replicate.toy import BENCHMARK, SAMPLES, toy
from nemo_algos.preflight.check.local.judge import judge
from tests.commands import invoke

PAPERS = {name: manifests.paper(name) for name in manifests.names()}
TOYS = {name: toy(known) for name, known in PAPERS.items()}
WITHOUT = {"etr": [], "quatro": [], "erpo": [], "apmpo": []}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_that_runs_has_a_toy_without_printed_numbers(paper):
    small, known = TOYS[paper], PAPERS[paper]
    runs = [name for name, item in known.items.items() if item.kind != "text"]
    assert [name for name in runs if name not in small.items] == WITHOUT[paper]
    cells = [cell for item in small.items.values() for cell in item.cells()]
    assert small.label == "TOY: " and not any(item.said for item in small.items.values())
    assert {cell.printed for cell in cells} | {cell.spread for cell in cells} == {None}
    assert {b for cell in cells for b in cell.benchmarks} <= {BENCHMARK, "train"}
    assert "boxed" not in {cell.metric for cell in cells}  # countdown's answers have no box
    assert all(int(c.metric.partition("@")[2] or 1) <= SAMPLES for c in cells)


def test_the_method_of_a_run_stays_and_papers_share_runs():
    needed = {p: {r for i in t.items.values() for r in i.needed_runs()} for p, t in TOYS.items()}
    assert "countdown/grpo" in set.intersection(*needed.values())
    assert len(set.union(*needed.values())) < sum(map(len, needed.values()))
    small = TOYS["apmpo"]
    run = "countdown/apmpo-clip_min0.1-clip_max0.3"
    wanted = {"name": "apmpo", "clip_min": 0.1, "clip_max": 0.3}
    assert small.of(run)[1].method == wanted and run in needed["apmpo"]
    assert "countdown-num_update_epochs5/gspo" in needed["quatro"]


@pytest.mark.parametrize(
    ("paper", "item", "words"),
    [
        ("quatro", "table1", ["qwen2.5-math-1.5b/dapo", "grpo.use_dynamic_sampling=true"]),
        ("apmpo", "table5", ["qwen2.5-vl-3b/grpo", "images"]),
        ("apmpo", "figure3", ["qwen2.5-vl-3b/apmpo", "images"]),
        ("erpo", "table1", ["deepseek-r1/base", "qwen3-235b/base", "qwen2.5-3b/sft"]),
        ("erpo", "table2", ["deepseek-r1/base", "qwen2.5-7b/sft"]),
    ],
)
def test_what_the_toy_leaves_out_is_said(paper, item, words):
    note = TOYS[paper].items[item].note
    assert all(word in note for word in words), note
    named = re.findall("No toy form of ([^:]*):", note)
    said = {run for runs in named for run in runs.split(", ")}
    assert len(named) <= 2  # a sentence for each reason
    assert said == {run for run in PAPERS[paper].items[item].needed_runs() if _has_none(paper, run)}


def _has_none(paper, run):
    model, method = PAPERS[paper].of(run)
    return isinstance(model.toy, str) or bool(method.program)


def test_a_key_beside_the_method_stays_where_the_embedded_engine_has_it():
    known = PAPERS["quatro"]
    method = known.methods["dapo"]
    keys = [*method.overrides, "grpo.num_update_epochs=3"]
    methods = {**known.methods, "dapo": method.model_copy(update={"overrides": keys})}
    small = toy(known.model_copy(update={"methods": methods}))
    runs = small.items["table1"].needed_runs()
    (run,) = [run for run in runs if "num_update_epochs3" in run]
    assert small.overrides(run)[-1] == "grpo.num_update_epochs=3"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_toy_run_and_evaluation_is_a_config_that_is_right(paper):
    small = TOYS[paper]
    for run in dict.fromkeys(r for item in small.items.values() for r in item.needed_runs()):
        if small.trains(run):
            written = apply_overrides(read(find(small.of(run)[0].recipe)), small.overrides(run))
            _, algorithm, _ = judge(resolve(written))
            assert algorithm.base.method.name == small.of(run)[1].method["name"]
    for evaluation in small.evaluations.values():
        plain = load(find(evaluation.config), evaluation.overrides)
        policy = load(find("local.yaml"))["policy"]
        parse_config({**plain, "model": {"engine": "local", "policy": policy}})


class Here(Executor):
    """In place of processes of their own, which .ci/run has: each takes seconds to start."""

    def submit(self, function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.mark.long
def test_an_item_is_made_end_to_end_and_not_again(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_algos.lab.replicate.toy.fresh", lambda workers: Here())
    monkeypatch.setattr("nemo_algos.engines.local.tiny_policy.WARM_STEPS", 2)
    monkeypatch.setattr("nemo_algos.engines.local.summary.plot", lambda folder, _: folder)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path / "cache"))
    command = ["replicate", "--toy", "etr", "table1", "--steps", "1", "--workers", "1"]
    done = invoke(*command, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "toy-report/etr/index.html").read_text()
    assert "TOY: table1" in page and "printed 0" not in page
    assert (tmp_path / "toy-report/etr/table1.png").stat().st_size > 1000
    rows = (tmp_path / "toy-report/etr/table1.csv").read_text().splitlines()
    assert len(rows) == 1 + 4 * 3 and not any(row.endswith("no run") for row in rows)
    weights = sorted(tmp_path.rglob("step_*.pt"))
    times = [os.stat(path).st_mtime_ns for path in weights]
    assert len(weights) == 3 and invoke(*command, "--out", tmp_path).exit_code == 0
    assert [os.stat(path).st_mtime_ns for path in weights] == times

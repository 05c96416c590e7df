"""Pieces of the report: numbers, seeds, the choice of what is embedded."""

import html
import json
import random
import re
from pathlib import Path

import folders
import matplotlib.pyplot as plt
import numpy as np
import pytest
from says import Says

from nemo_algos import page
from nemo_algos.lab.report import by_method, cases, differences, evaluation, heat, summary, training
from nemo_algos.lab.report.figure import Figure, Line, running_mean
from nemo_algos.lab.report.numbers import format_number
from nemo_algos.lab.report.runs import LoadedRun, groups
from nemo_algos.style import COLORS

INF = float("inf")


@pytest.mark.parametrize(
    ("x", "text"),
    [
        *((None, "–"), (float("nan"), "NaN"), (INF, "∞"), (-INF, "-∞")),  # noqa: RUF001
        *((0.0, "0"), (1.0, "1"), (12.0, "12"), (-3.0, "-3"), (123456.0, "123456")),
        *((0.5, "0.500"), (-0.0625, "-0.062"), (0.00196, "0.00196"), (9.31e-5, "9.31e-05")),
        *((12.345, "12.3"), (1234.5, "1.23e+03"), (2e7, "2e+07")),
    ],
)
def test_numbers_are_written_one_way(x, text):
    assert format_number(x) == text


def test_json_in_a_script_holds_no_markup():
    hostile = {"a": "</script><!--&\u2028\ud800"}
    written = page.environment().from_string("{{ data | tojson }}")
    text = written.render(data=hostile)
    assert not set("<>&") & set(text) and text.isascii() and json.loads(text) == hostile
    with pytest.raises(ValueError):
        written.render(data=[float("nan")])


def test_running_mean_by_hand():
    y = np.array([1.0, 2.0, 6.0, np.nan, 4.0])
    assert running_mean(y, 3).tolist() == [1.5, 3, 4, 5, 4]
    assert running_mean(y[:2], 1).tolist() == [1, 2]
    assert np.isnan(running_mean(np.full(3, np.nan), 3)).all()


def run(label, seed=1, method="grpo", **rest):
    config = {"method": {"name": method}, "grpo": {"seed": seed}, "logger": {"log_dir": label}}
    return LoadedRun(label, Path(label), {"config": config}, **rest)


def test_seeds_share_a_group_other_runs_do_not():
    plain = LoadedRun("nemo", Path("nemo"))
    made = groups([run("a"), run("b", method="etr"), run("c", seed=2), plain])
    assert [g.label for g in made] == ["grpo (2 seeds)", "b", "nemo"]
    assert [g.color for g in made] == list(COLORS[:3])
    again = groups([run("a"), run("b"), run("c", seed=2)])  # grpo's seed 1 twice
    assert [g.label for g in again] == ["a (2 seeds)", "b"]  # grpo is the name of both
    other = [run(f"dapo-{seed}", seed=seed) for seed in (1, 2)]
    for one in other:
        one.config["method"]["clip_high"] = 0.28
    named = [g.label for g in groups([run("grpo-1"), run("grpo-2", seed=2), *other])]
    assert named == ["grpo (2 seeds)", "dapo (2 seeds)"]
    many = groups([run(str(i), method=str(i)) for i in range(9)])
    assert many[7].color == COLORS[0] and many[7].dashed and not many[6].dashed


def test_a_curve_of_seeds_is_over_the_steps_of_all():
    steps, values = training.together([([1, 2, 3], [1, 2, 3]), ([2, 3, 4], [6, 7, 8])])
    assert steps == [2, 3] and values.tolist() == [[2, 3], [6, 7]]


def test_a_metric_that_is_always_zero_is_named_and_not_drawn():
    first = {"etr/a": ([1, 2], [0.0, 0.0]), "mismatch/max": ([1], [0.0])}
    second = {"etr/a": ([1, 2], [0.0, 0.5]), "mismatch/max": ([1], [0.0])}
    both = groups([run("a", metrics=first), run("b", method="etr", metrics=second)])
    drawn, zero = training.figures(both)
    assert [figure.title for figure in drawn] == ["etr/a"] and zero == ["mismatch/max"]
    seeds = groups([run("a", metrics=first), run("b", seed=2, metrics=second)])
    assert [figure.title for figure in training.figures(seeds)[0]] == ["etr/a"]
    opposed = [run(k, seed=y, metrics={"etr/a": ([1], [y])}) for k, y in (("a", 0.5), ("b", -0.5))]
    assert [figure.title for figure in training.figures(groups(opposed))[0]] == ["etr/a"]
    unknown = groups([run("a", metrics={"mismatch/max": ([1], [float("nan")])})])
    assert training.figures(unknown)[1] == []


def test_a_curve_that_another_one_hides_is_named():
    curves = {"a": [0.5, 0.25, 1.0], "b": [0.5, 0.25, 1.0], "c": [0.5, 0.25, 0.75]}
    runs = [run(k, method=k, metrics={"length/mean": ([1, 2, 3], y)}) for k, y in curves.items()]
    (figure,), _ = training.figures(groups(runs))
    assert figure.caption == "Mean over the rollout batch. a is hidden by b: they are equal."


def test_a_metric_of_a_method_of_ones_own_is_drawn():
    metrics = {"rare/a": ([1], [0.5]), "other/a": ([1], [0.5])}
    named = run("a", method="my_package.my_module:MINE", metrics=metrics)
    named.manifest["method"] = "rare+etr"
    drawn, _ = training.figures(groups([named]))
    assert [figure.title for figure in drawn] == ["rare/a"]


@pytest.mark.parametrize(("values", "markers"), [(2, 1), (12, 1), (13, 0)])
def test_few_points_have_markers_and_steps_are_whole(tmp_path, values, markers):
    line = Line("a", "#000000", list(range(1, values + 1)), [0.5] * values, smooth=1)
    svg = Figure("f", "T", "step", "y", [line]).save(tmp_path)
    assert svg.count('id="f.0.') == 3 + markers  # values, their mean, not finite
    ticks = re.findall(r'<g id="xtick_\d+">.*?>([^<>]+)</text>', svg, re.DOTALL)
    assert len(ticks) >= 2 and all(float(tick).is_integer() for tick in ticks)


def test_what_has_no_place_on_a_scale_is_marked_at_its_edge():
    """Not finite at the top, 0 and below at the bottom of a log scale."""
    line = Line("a", "#000000", [1, 2, 3, 4, 5], [0.5, 0.0, np.nan, -1.0, 0.25])
    for scale, zeros, marked in (("log", 2, {0.97: [3], 0.03: [2, 4]}), ("linear", 0, {0.97: [3]})):
        figure = Figure("f", "T", "step", "y", [line], scale=scale)
        assert (figure.nonfinite, figure.zeros) == (1, zeros)
        axes = plt.figure().add_subplot()
        figure._draw(axes)
        crosses = [one for one in axes.lines if one.get_marker() == "x" and len(one.get_xdata())]
        assert {one.get_ydata()[0]: [*one.get_xdata()] for one in crosses} == marked
        plt.close("all")


def test_a_run_has_a_column_of_what_it_has():
    one = run("a", metrics={"reward/mean": ([1, 2], [0.25, 0.5])})
    other = run("b", method="etr", seed=2, metrics={"reward/mean": ([4], [0.75])})
    table = summary.training([one, other])
    assert table.headings == ["", "a", "b"]
    assert [(name, *(cell.text for cell in cells)) for name, cells in table.rows] == [
        ("method", "grpo", "etr"),
        ("seed", "1", "2"),
        ("steps", "2", "4"),
        ("Reward", "0.500", "0.750"),
    ]


@pytest.mark.parametrize(("methods", "warned"), [("ab", 1), ("aa", 0), ("aab", 0), ("a", 0)])
def test_one_run_of_each_method_shows_no_difference(methods, warned):
    metrics = {"reward/mean": ([1], [0.5])}
    runs = [run(str(i), method=m, seed=i, metrics=metrics) for i, m in enumerate(methods)]
    table = summary.training(runs)
    assert len(table.notes) == 1 + warned


def held_out(method, by_seed, step=20):
    """A run of each seed, whose last evaluation has this pass@1."""
    runs = []
    for seed, value in by_seed.items():
        metrics = {
            "validation/accuracy": ([0, step], [0.25, value]),
            "validation/pass@1": ([0, step], [0.25, value]),
            "validation/pass@64": ([0, step], [1.0, value + 0.25]),
        }
        runs.append(run(f"{method}-{seed}", seed=seed, method=method, metrics=metrics))
    return runs


def rows_of(table):
    return {
        name: [(cell.text, cell.note, cell.strong) for cell in cells] for name, cells in table.rows
    }


def test_a_method_has_its_mean_interval_and_paired_difference():
    """1/8, 2/8, 3/8 against 3/16, 6/16, 9/16, in another order of seeds: t of 2 is 4.30265."""
    runs = held_out("grpo", {1: 0.125, 2: 0.25, 3: 0.375}) + held_out(
        "etr", {3: 0.5625, 1: 0.1875, 2: 0.375}
    )
    table = by_method.table(groups(runs))
    assert table.headings == ["", "grpo (3 seeds)", "etr (3 seeds)"]
    rows = rows_of(table)
    assert list(rows) == ["seeds", "held-out pass@1", "held-out pass@64"]
    assert [text for text, _, _ in rows["seeds"]] == ["3", "3"]
    half = 4.302652730 * 0.125 / 3**0.5  # 0.31052; of the other 3/2 of it, of the difference 1/2
    assert rows["held-out pass@1"] == [
        ("0.250", f"{0.25 - half:.3f} to {0.25 + half:.3f}", False),
        (
            "0.375",
            f"{0.375 - 1.5 * half:.3f} to {0.375 + 1.5 * half:.3f}\n"
            f"+0.125 [{0.125 - half / 2:.3f}, {0.125 + half / 2:.3f}]",
            False,
        ),
    ]
    assert rows["held-out pass@64"][0][0] == "0.500" and len(table.notes) == 1
    alike = held_out("a", {1: 0.125, 2: 0.25}) + held_out("b", {1: 0.25, 2: 0.375})
    cells = rows_of(by_method.table(groups(alike)))["held-out pass@1"]
    assert cells[1][1:] == ("-0.482 to 1.107\n+0.125", False)  # equal differences have no spread


def test_no_interval_is_made_up_and_what_weakens_one_is_said():
    """One seed has none; two, other pairs, another config and another last step are said."""
    assert by_method.table(groups(held_out("grpo", {1: 0.5}) + held_out("etr", {1: 0.5}))) is None
    two = held_out("grpo", {1: 0.125, 2: 0.25})
    (said,) = by_method.table(groups(two)).notes[1:]
    assert said == Says("6.4 five")
    table = by_method.table(groups(two + held_out("etr", {2: 0.5}, step=10)))
    assert rows_of(table)["held-out pass@1"][1] == ("0.500", "\n+0.250", False)
    assert table.notes[2:] == [Says("etr-2 1"), Says("10 (etr-2) 20 (grpo-2)")]
    other = held_out("etr", {1: 0.5, 2: 0.5})
    for one in other:
        one.config["grpo"]["max_num_steps"] = 5
    assert by_method.table(groups(two + other)).notes[2:] == [Says("grpo.max_num_steps")]


@pytest.mark.parametrize(
    ("first", "axis"), [(0.5, (0.25, 1.0)), (0.125, (-0.03125, 1.375)), (-0.25, (-1.25, 1.75))]
)
def test_a_band_far_wider_than_its_curve_ends_at_the_edge(first, axis):
    """Of two seeds; where no value is below 0, neither is the axis."""
    line = Line("a", "#000000", [1, 2], [first, 0.75], [-9.0, -9.0], [9.0, 9.0], seeds=2)
    axes = plt.figure().add_subplot()
    Figure("f", "T", "step", "y", [line])._draw(axes)
    assert axes.get_ylim() == pytest.approx(axis)
    plt.close("all")


def test_what_a_reader_asks_for_is_drawn_first():
    names = ("length/mean", "kl/old", "entropy/exact", "reward/mean", "validation/accuracy")
    drawn, _ = training.figures(groups([run("a", metrics=dict.fromkeys(names, ([1], [0.5])))]))
    first = [figure.name for figure in drawn][:3]
    assert first == ["training_validation", "training_reward", "training_entropy"]


def curve(value, low, high):
    return {"k": [1, 2], "value": value, "low": low, "high": high}


def test_intervals_of_seeds_are_over_seeds():
    one, two = curve([0.2, 0.4], [0.1, 0.3], [0.3, 0.5]), curve([0.4, 0.6], [0.2, 0.5], [0.6, None])
    assert evaluation.combine([one]) == ([1, 2], [0.2, 0.4], [0.1, 0.3], [0.3, 0.5])
    ks, mean, low, high = evaluation.combine([one, two])
    half = 12.706204736 * 0.2 / 2
    assert ks == [1, 2] and mean == pytest.approx([0.3, 0.5])
    assert low == pytest.approx([0.3 - half, 0.5 - half])
    assert high == pytest.approx([0.3 + half, 0.5 + half])


def test_means_by_difficulty_by_hand():
    base = {"ids": ["a", "b", "c", "d"], "correct": [0, 2, 3, 8]}
    tuned = {"ids": ["d", "c", "b", "a"], "per_problem": {"mean": [1.0, 0.5, 0.25, 0.125]}}
    buckets = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, 8.0)]
    means = evaluation._bucket_means(base, tuned, buckets)
    assert means[:2] == [0.1875, 0.5] and np.isnan(means[2]) and means[3] == 1
    assert [evaluation.bucket_name(*b) for b in buckets] == ["0–2", "3–4", "5–6", "7–8"]  # noqa: RUF001
    few = [(0.0, 0.125), (0.5, 2.0), (2.0, 4.0)]  # compare's of 4 responses
    assert [evaluation.bucket_name(*b) for b in few] == ["0", "1–2", "3–4"]  # noqa: RUF001


@pytest.mark.parametrize("number", [1, 9, 10, 30])
def test_points_of_many_runs_keep_to_their_bucket(number):
    metrics = {"ids": ["a", "b"], "correct": [0, 8], "per_problem": {"mean": [0.25, 0.75]}}
    runs = [run(str(i), method=str(i), evals={"made up": metrics}) for i in range(number)]
    buckets = [(0.0, 2.0), (2.0, 4.0), (4.0, 8.0)]
    figure = evaluation.by_difficulty("made up", groups(runs), buckets)
    assert figure.csv().splitlines()[1:] == [
        row
        for i in range(number)
        for row in (f"{i},0–2,0.25,,", f"{i},5–8,0.75,,")  # noqa: RUF001
    ]
    reach = [x - round(x) for line in figure.lines for x in line.x]
    assert max(np.abs(reach)) <= 0.4 and len(set(np.round(reach, 6))) == number


def test_a_histogram_of_any_number_of_bins():
    histogram = {"edges": [0.0, 0.3, 0.6, 1.0], "all": [1, 2, 1], "correct": [0, 0, 0]}
    one = run("a", evals={"made up": {"histograms": {"tfidf": histogram}}})
    other = run("b", method="etr", evals={"made up": {}})
    figure = evaluation._histogram("made up", groups([one, other]), "tfidf", "all")
    (line,) = figure.lines
    assert (line.x, line.y) == ([0.0, 0.3, 0.6, 1.0], [0.25, 0.5, 0.25])
    assert evaluation._histogram("made up", groups([one]), "tfidf", "correct").lines == []


def test_a_figures_csv_has_its_numbers(tmp_path):
    lines = [Line("a, b", "#000000", [1, 2], [0.5, float("nan")], [0.25, 0.0], [1.0, 2.0])]
    figure = Figure("f", "T $x_", "k", "y", lines, scale="log2")
    svg = figure.save(tmp_path)
    assert svg == figure.save(tmp_path)  # without a date or a random id
    assert figure.nonfinite == 1
    assert (tmp_path / "f.csv").read_text() == (
        'series,k,value,low,high\n"a, b",1,0.5,0.25,1.0\n"a, b",2,nan,0.0,2.0\n'
    )
    assert svg.startswith("<svg") and "T $x_" in svg and (tmp_path / "f.png").stat().st_size > 5000
    ticked = Figure("g", "", "x", "y", [Line("a", "#000000", [0.1, 1.1], [1, 2])], ticks=("p", "q"))
    assert ticked.csv().splitlines()[1:] == ["a,p,1,,", "a,q,2,,"]


def test_only_keys_that_differ():
    runs = [run("a"), run("b", seed=2, method="etr")]
    runs[0].manifest["versions"] = {"torch": "2.6", "python": "3.11", "numpy": "2"}
    runs[1].manifest["versions"] = {"torch": "2.7", "python": "3.11"}
    for one in runs:
        one.config["engine"] = "local"  # the same in both that have a config
    evaluation = LoadedRun("c", Path("c"), {"versions": {"torch": "2.6", "python": "3.11"}})
    assert differences.differing([*runs, evaluation]) == [
        ("grpo.seed", ["1", "2", ""]),
        ("method.name", ["grpo", "etr", ""]),
        ("versions.torch", ["2.6", "2.7", "2.6"]),
    ]
    runs[0].config["grpo"]["max_num_steps"] = 5
    assert differences.differing(runs)[0] == ("grpo.max_num_steps", ["5", "–"])  # noqa: RUF001


def test_evaluations_differ_between_those_that_have_them():
    def one(label, **settings):
        sampling = {"temperature": 1.0, "seed": 0} | settings
        manifest = {"model": label, "sampling": sampling, "verifier": "math"}
        evals = {"math500": {}}
        return LoadedRun(label, Path(label), {"eval": {"math500": manifest}}, evals=evals)

    runs = [one("a"), one("b", seed=1), run("c")]
    assert differences.differing(runs) == [
        ("eval.math500.model", ["a", "b", ""]),
        ("eval.math500.sampling.seed", ["0", "1", ""]),
    ]
    assert differences.unlike(runs, "math500") == []
    assert differences.unlike([*runs, one("d", top_p=0.9)], "math500") == [
        Says("sampling.top_p (a b) 0.9 (d)")
    ]


@pytest.mark.parametrize(
    ("problems", "gaps", "last"),
    [(1000, {5}, 995), (272, {1, 2}, 270), (500, {2, 3}, 497), (3, {1}, 2), (1, set(), 0)],
)
def test_problems_are_spread_over_the_list(problems, gaps, last):
    chosen = cases.spread([str(i) for i in range(problems)], 200)
    found = sorted(map(int, chosen))
    assert len(found) == min(problems, 200) and found[0] == 0 and found[-1] == last
    assert set(np.diff(found)) == gaps
    if problems == 1000:  # and so are the first of them
        assert sorted(map(int, chosen[:25])) == list(range(0, 1000, 40))
    assert cases.spread([], 200) == []


def test_the_embedded_cases_keep_to_their_budget(tmp_path, monkeypatch):
    folder = folders.evaluation(tmp_path / "math500", problems=40, samples=12)
    whole = cases.cases(groups([evaluated(folder)]))
    assert whole["benchmarks"][0]["note"] == Says("40 of 40 8 of 12")
    monkeypatch.setattr(cases, "BUDGET", 30_000)
    less = cases.cases(groups([evaluated(folder)]))["benchmarks"][0]
    number = len(less["problems"])
    assert 5 < number < 35 and less["note"].startswith(f"{number} of 40 problems")
    assert len(json.dumps(less["problems"])) <= 30_000
    monkeypatch.setattr(cases, "BUDGET", 100)
    (least,) = cases.cases(groups([evaluated(folder)]))["benchmarks"]
    assert [p["id"] for p in least["problems"]] == ["p/0"]
    assert least["note"] == Says("1 of 40 8 of 12")
    mixed = {
        r["verdict"] for p in whole["benchmarks"][0]["problems"] for r in p["runs"][0]["responses"]
    }
    assert mixed == {"right", "wrong", "timeout"}


def evaluated(folder):
    metrics = json.loads((folder / "metrics.json").read_text())
    return LoadedRun("a", folder, evals={"math500": metrics}, eval_folders={"math500": folder})


def test_samples_are_chosen_right_and_wrong_in_turn():
    kinds = ["timeout", *(["wrong"] * 6), *(["right"] * 2), *(["wrong"] * 6)]
    verdicts = {
        i: {"status": kind if kind == "timeout" else "ok", "reward": float(kind == "right")}
        for i, kind in enumerate(kinds)
    }
    assert cases.pick_samples(verdicts) == {0, 7, 8, 1, 2, 3, 4, 5}


def test_samples_beyond_the_manifests_number_are_not_counted(tmp_path):
    """Evaluated once with 8 samples, then with 3."""
    folder = folders.evaluation(tmp_path / "math500", problems=4, samples=8)
    folders.change_json(folder / "manifest.json", sampling__samples=3)
    (benchmark,) = cases.cases(groups([evaluated(folder)]))["benchmarks"]
    runs = [problem["runs"][0] for problem in benchmark["problems"]]
    assert [run["of"] for run in runs] == [3] * 4
    assert [[r["sample"] for r in run["responses"]] for run in runs] == [[0, 1, 2]] * 4
    assert [run["right"] for run in runs] == [
        sum(r["verdict"] == "right" for r in run["responses"]) for run in runs
    ]


def test_of_a_verdict_written_twice_the_last_counts(tmp_path):
    folder = folders.evaluation(tmp_path / "math500", problems=2)
    again = {"problem": "p/0", "sample": 0, "reward": 1.0, "status": "ok", "detail": "", "of": "o"}
    with open(folder / "verdicts.jsonl", "a") as file:
        file.write(json.dumps({**again, "status": "timeout", "reward": 0.0}) + "\n")
        file.write(json.dumps(again) + "\n" + '{"cut')
    made = cases.cases(groups([evaluated(folder)]))
    first = made["benchmarks"][0]["problems"][0]["runs"][0]
    assert first["responses"][0]["verdict"] == "right" and first["of"] == 8


def test_steps_that_do_not_fit_are_said(monkeypatch):
    traces = [t for s in range(1, 21) for t in folders._traces(s, random.Random(0))]
    whole = heat.heat(groups([run("a", traces=traces)]))
    assert len(whole["runs"][0]["steps"]) == 20 and whole["note"] == ""
    monkeypatch.setattr(heat, "BUDGET", 5000)
    some = heat.heat(groups([run("a", traces=traces)]))
    steps = [s["step"] for s in some["runs"][0]["steps"]]
    assert 1 < len(steps) < 20 and steps[0] == 1 and steps[-1] == 20
    assert some["note"] == Says(f"a: {len(steps)} of 20")


def test_scales_are_of_finite_values():
    row = {"entropy": [0.5, float("nan")], "ratio": [2.0, 0.0, INF], "advantage": [-3.0, 1.0]}
    scales = heat._scales([row])
    assert scales["entropy"] == 0.5 and scales["ratio"] == pytest.approx(np.log(2))
    assert scales["advantage"] == pytest.approx(2.98)


def test_the_page_is_told_the_values_and_where_they_lie(tmp_path):
    y = [0.123456789, float("inf"), *[0.5] * 2498]
    lines = [Line('<b>"', "#0072B2", range(2500), y, smooth=3), Line("c", "#D55E00", [0], [1])]
    svg = Figure("f", "", "step", "y", lines).save(tmp_path)
    written = re.match(r'<svg data-plot="([^"<>]*)"', svg)
    plot = json.loads(html.unescape(written[1]))
    assert (plot["name"], plot["x"][4], plot["ticks"]) == ("f", False, [])
    assert plot["x"][2:4] == pytest.approx([0.155 * 280.8, 0.985 * 280.8])  # 3.9 inches of 72
    long, short = plot["lines"]
    assert (long["label"], long["smooth"], short["smooth"]) == ('<b>"', True, False)
    assert len(long["x"]) == len(long["y"]) == 834 and long["x"][:3] == [0, 3, 6]
    assert long["y"][:2] == [0.12346, 0.5] and long["low"] == []
    assert set(re.findall(r'id="(f\.0\.\w+)"', svg)) == {"f.0.0", "f.0.mean", "f.0.2"}
    steps = Line("s", "#0072B2", [0, 1, 3], [float("nan"), 2], kind="steps").values()
    assert (steps["x"], steps["y"]) == ([0.5, 2], [None, 2])

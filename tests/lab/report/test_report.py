"""The report's page and files: what is in them, and that hostile responses stay text."""

import csv
import json
import re
from math import exp

import folders
import numpy
import pytest
from commands import invoke
from says import Says

from nemo_algos.lab.report.compare import compare
from nemo_algos.lab.report.page import write
from nemo_algos.lab.report.runs import read_runs


def report(*arguments):
    done = invoke("report", *arguments)
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two seeds of grpo and etr, all evaluated."""
    root = tmp_path_factory.mktemp("runs")
    runs = [
        folders.training(root / "grpo" / "exp_001", seed=1),
        folders.training(root / "grpo2" / "exp_001", seed=2),
        folders.training(root / "etr" / "exp_001", method="etr", seed=1),
    ]
    for i, run in enumerate(runs):
        folders.evaluation(run / "eval" / "math500", skill=0.3 + 0.2 * i)
    code, said = report(*runs, "--out", root / "out")
    assert code == 0 and "index.html" in said
    return root / "out"


@pytest.fixture
def no_figures(monkeypatch):
    folders.draw_nothing(monkeypatch)


@pytest.fixture(scope="module")
def html(written):
    return (written / "index.html").read_text()


def embedded(html, name):
    (text,) = re.findall(f'<script type="application/json" id="{name}">(.*?)</script>', html, re.S)
    return json.loads(text)


def test_the_page_needs_nothing_else(html):
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)
    assert not re.findall(r"url\((?!#)", html)
    assert "default-src 'none'" in html
    assert len(html) < 15e6


def test_hostile_responses_close_no_element(html):
    assert html.count("</script>") == 3 and html.count("<script") == 3
    data = embedded(html, "case-data")
    texts = {
        r["text"]
        for problem in data["benchmarks"][0]["problems"]
        for run in problem["runs"]
        for r in run["responses"]
    }
    long = folders.HOSTILE[3]
    assert {t for t in folders.HOSTILE if t != long} <= texts and long not in texts
    shortened = f"{'x' * 3000}\n[... 94000 characters left out ...]\n{'x' * 3000}"
    assert shortened in texts
    assert "<img" not in html and "window.stolen" in html
    heat = embedded(html, "heat-data")
    first = heat["runs"][0]["steps"][0]["prompts"][0]["responses"][0]
    assert first["tokens"][0] == "</script>" and first["tokens"][4] == "\ud800"


def test_heat_map_data_are_the_traces(html):
    heat = embedded(html, "heat-data")
    assert [run["label"] for run in heat["runs"]] == ["grpo", "grpo2", "etr"]
    assert [step["step"] for step in heat["runs"][0]["steps"]] == [1, 60]
    first = heat["runs"][0]["steps"][0]["prompts"][0]["responses"][0]
    assert first["ratio"][0] == "1.500" and first["low"] == "0.800" and first["cut"][0] == 1
    assert first["entropy"][-1] == "NaN" and first["advantage"] == "1"


def test_every_figure_is_there_as_png_and_csv(written, html):
    named = re.findall(r'<figure id="(.*?)">', html)
    assert {"training_reward", "training_clip_below", "math500_pass_at_k"} <= set(named)
    assert {"math500_difficulty", "math500_tfidf_correct", "math500_ucc_by_threshold"} <= set(named)
    assert "math500_tfidf_pairs" in named
    files = {p.name for p in (written / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in named for kind in ("png", "csv")}
    assert "math500_best_at_k" not in named  # rewards are 0 and 1: it is pass@k


def rows(written, name):
    with open(written / "figures" / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def test_seeds_are_one_line_with_a_band(written, tmp_path):
    points = rows(written, "training_reward")
    assert {p["series"] for p in points} == {"grpo (2 seeds)", "etr"} and len(points) == 120
    runs = [written.parent / name / "exp_001" for name in ("grpo", "grpo2")]
    first, second = (
        json.loads((run / "metrics.jsonl").read_text().splitlines()[6])["reward/mean"]
        for run in runs
    )
    point = points[6]
    assert float(point["value"]) == pytest.approx((first + second) / 2)
    half = 12.706204736 * abs(first - second) / 2  # Student's, of one degree of freedom
    ends = [(first + second) / 2 - half, (first + second) / 2 + half]
    assert [float(point[k]) for k in ("low", "high")] == pytest.approx(ends)


def test_values_that_are_no_numbers_are_counted_and_kept(written, html):
    assert re.search(r"\b2 values\b", html)  # the mean of the seeds, and etr
    points = rows(written, "training_grad_norm")
    assert [p["step"] for p in points if p["value"] == "nan"] == ["30", "30"]


def test_only_what_differs_of_the_configs(html):
    table = html[html.index('<table class="diff">') :]
    keys = re.findall(r"<tr><th>(.*?)</th>", table[: table.index("</table>")])
    assert keys == ["key", "grpo.seed", "method.name"]


def test_differences_to_the_first_run(written, html):
    """As compare() has them; bold where the interval leaves out 0."""
    base, tuned = (
        json.loads((written.parent / f"{name}/exp_001/eval/math500/metrics.json").read_text())
        for name in ("grpo", "etr")
    )
    want = compare(base, tuned)["mean"]
    start = html.index("math500: mean", html.index("single seeds"))
    single = html[start : html.index("</table>", start)].split("</tr>")[1:]  # a row per run
    means = "".join(cells.split("<td")[1] for cells in single[:-1])
    found = re.findall(r"<small( class=\"strong\")?>([+-][\d.]+) \[([\d.-]+), ([\d.-]+)\]", means)
    assert len(found) == 2
    assert [float(x) for x in found[1][1:]] == pytest.approx(list(want.values()), abs=6e-4)
    assert want["low"] > 0 and found[1][0]
    assert "math500: pass@8" in html  # the largest k, though no power of 4


def test_missing_parts_say_how_to_get_them(tmp_path, no_figures):
    run = folders.training(tmp_path / "a", traces=False)
    html = write([run], tmp_path / "out").read_text()
    assert "<code>nemo-algos eval</code> makes one" in html
    assert "<code>logger.trace_period</code> is above 0" in " ".join(html.split())
    assert "One run: nothing to compare with." in html
    evaluated = folders.evaluation(tmp_path / "b" / "math500")
    html = write([evaluated], tmp_path / "out").read_text()
    assert "No training run here" in html and "math500: mean" in html


def test_a_report_without_figures_leaves_none_of_an_earlier_one(tmp_path):
    out = tmp_path / "out"
    folders.write_lines(tmp_path / "a" / "metrics.jsonl", [{"step": 1, "of our own": 2.0}])
    assert write([tmp_path / "a"], tmp_path / "new" / "out").exists()
    folders.write_json(out / "figures" / "of_something_else.csv", 1)
    write([tmp_path / "a"], out)
    assert (out / "index.html").exists() and (out / "figures" / "of_something_else.csv").exists()
    write([folders.training(tmp_path / "b", steps=2)], out)
    assert (out / "figures" / "training_reward.csv").exists()
    write([tmp_path / "a"], out)
    assert list((out / "figures").iterdir()) == []


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """The same benchmark, sampled and measured in different ways, on problems of its own."""
    root = tmp_path_factory.mktemp("unlike")
    folders.evaluation(root / "a" / "math500", problems=10, seed=1)
    folders.evaluation(root / "b" / "math500", problems=12, seed=2, ucc_threshold=0.5)
    folders.evaluation(root / "c" / "math500", problems=10, seed=3)
    folders.change_json(root / "b/math500/manifest.json", sampling__temperature=0.6)
    folders.change_json(root / "b/math500/manifest.json", versions={"python": "3.12", "torch": "2"})
    with pytest.MonkeyPatch.context() as patch:
        folders.draw_nothing(patch)
        return write([root / name for name in "abc"], root / "out").read_text()


def test_evaluations_that_are_not_alike_are_said(unlike):
    cautions = re.findall(r'<p class="note caution">(.*?)</p>', unlike)
    assert cautions == [
        Says("metrics.ucc_threshold 0.8 (a c) 0.5 (b) sampling.temperature 1.0 0.6"),
        Says("b: 10 0 2"),
    ]
    assert unlike.index("caution") < unlike.index('<figure id="math500')
    table = unlike[unlike.index('<table class="diff">') :]
    found = re.findall(r"<tr><th>eval.math500.(.*?)</th>(.*?)</tr>", table)
    assert {key: re.findall("<td>(.*?)</td>", values) for key, values in found} == {
        "metrics.ucc_threshold": ["0.8", "0.5", "0.8"],
        "sampling.seed": ["1", "2", "3"],
        "sampling.temperature": ["1.0", "0.6", "1.0"],
        "versions.python": ["3.11", "3.12", "3.11"],
    }


def test_ucc_has_a_difference_only_at_equal_settings(unlike):
    row = unlike[unlike.index("<tr><th>ucc@8</th>") :]
    cells = row[: row.index("</tr>")].split("<td>")[1:]
    paired = [len(re.findall(r"<small[^>]*>[+-]?[\d.]+ \[", cell)) for cell in cells]
    assert paired == [0, 0, 1]


def test_an_evaluation_by_its_folder_or_the_one_above(tmp_path):
    folders.evaluation(tmp_path / "model" / "math500")
    (inside,) = read_runs([tmp_path / "model" / "math500"])
    (above,) = read_runs([tmp_path / "model"])
    assert inside.evals == above.evals and list(inside.evals) == ["math500"]


def test_nemo_rl_logs_have_our_names(tmp_path, no_figures):
    values = {
        "train/reward": {1: 0.25, 2: 0.5},
        "train/approx_entropy": {1: 1.0, 2: float("nan")},
        "train/clip/positive_above": {1: 0.125},
        "train/mean_gen_tokens_per_sample": {1: 100.0},
        "train/probs_ratio_max": {1: 1.5},
        "validation/accuracy": {2: 0.75},
    }
    folder = folders.nemo_rl(tmp_path / "exp_001", values)
    (run,) = read_runs([folder])
    assert run.metrics["reward/mean"] == ([1, 2], [0.25, 0.5])
    assert run.metrics["clip/positive_above"] == ([1], [0.125])
    assert run.metrics["length/mean"] == ([1], [100]) and run.metrics["ratio/max"] == ([1], [1.5])
    assert str(run.metrics["entropy/approximate"]) == "([1.0, 2.0], [1.0, nan])"
    html = write([folder], tmp_path / "out").read_text()
    assert "training_validation" in html and re.search(r"\b1 value not finite", html)


TRACED = {
    "step": 2,
    "group": 0,
    "prompt": "p",
    "tokens": ["a", "b"],
    "reward": 1.0,
    "cut": [False, True],
    "entropy": None,
    "advantage": [1.0, 1.0],
    "ratio": [1.0, 1.5],
    "low": [0.8, 0.8],
    "high": [1.2, 1.2],
}


def test_a_nemo_rl_run_shows_its_method_metrics_and_tokens(tmp_path, no_figures):
    own = ["etr/low", "mismatch/mean", "verifier/ok", "timing/train/total_step_time", "lr"]
    values = {f"train/{name}": {1: 0.5, 2: 0.25} for name in own[:3] + own[4:]}
    values |= {own[3]: {1: 7.0, 2: 8.0}}
    folder = folders.nemo_rl(tmp_path / "exp_001", values)
    config = {"method": {"name": "etr", "micro": 0.5}, "grpo": {"seed": 42}, "policy": {"x": 1}}
    (folder / "nemo_algos.json").write_text(json.dumps({"config": config}))
    (folder / "trace.jsonl").write_text(json.dumps(TRACED) + "\n")
    html = write([folder], tmp_path / "out").read_text()
    (run,) = read_runs([folder])
    assert run.config["policy"] == {"x": 1}
    assert "<td>etr" in html and "micro=0.5" in html and "42" in html
    drawn = re.findall(r'<figure id="training_(.*?)">', html)
    assert drawn == ["etr_low", "mismatch_mean", "timing_train_total_step_time", "verifier_ok"]
    (response,) = embedded(html, "heat-data")["runs"][0]["steps"][0]["prompts"][0]["responses"]
    assert response["ratio"] == ["1", "1.500"] and response["entropy"] is None


NAMES = {
    "ours": ("tokens", "mask", "sampler_logprobs", "trainer_logprobs"),
    "verl": ("responses", "response_mask", "rollout_log_probs", "old_log_probs"),
    "TRL": ("completion_ids", "completion_mask", "sampling_per_token_logps", "old_per_token_logps"),
}


@pytest.mark.parametrize("framework", NAMES)
def test_dumps_of_log_probs_are_a_heat_map_of_their_ratio(tmp_path, framework, no_figures):
    values = ([[5, 6, 7]], [[1, 1, 0]], [[-1.0, -2.0, -9.0]], [[-1.0, -1.5, -1.0]])
    columns = dict(zip(NAMES[framework], map(numpy.array, values), strict=True))
    numpy.savez(tmp_path / "step_000004.npz", **columns)
    html = write([tmp_path], tmp_path / "out").read_text()
    (step,) = embedded(html, "heat-data")["runs"][0]["steps"]
    (response,) = step["prompts"][0]["responses"]
    assert step["step"] == 4 and response["tokens"] == ["5 ", "6 "]
    assert [float(x) for x in response["ratio"]] == pytest.approx([1.0, exp(0.5)], rel=1e-3)


def test_of_a_resumed_nemo_rl_run_the_later_value_counts(tmp_path):
    folders.nemo_rl(tmp_path / "log", {"train/reward": {1: 0.1, 2: 0.2, 3: 0.3}})
    folders.nemo_rl(tmp_path / "log", {"train/reward": {2: 0.5}})
    (run,) = read_runs([tmp_path / "log"])
    assert run.metrics["reward/mean"][1] == pytest.approx([0.1, 0.5, 0.3])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("notes.txt", "", "run"),
        ("metrics.jsonl", "", "step"),
        ("metrics.jsonl", '{"step": 1}\n{"st\n{"step": 3}\n', "metrics.jsonl 2 JSON"),
        ("metrics.jsonl", '{"reward/mean": 1}\n', "metrics.jsonl 1 step"),
        ("metrics.jsonl", "[1]\n", "1 JSON object"),
        ("metrics.jsonl", '{"step": 1, "loss": "high"}\n', "1 loss number 'high'"),
        ("generations.jsonl", "", "`nemo-algos eval`"),
        ("metrics.json", "{", "metrics.json JSON"),
    ],
)
def test_wrong_folders_are_refused_in_a_sentence(tmp_path, name, text, said):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(text)
    code, output = report(tmp_path / "run", "--out", tmp_path / "out")
    assert code == 2 and output == Says(said) and output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_wrong_arguments(tmp_path):
    code, output = report(tmp_path / "nowhere", "--out", tmp_path / "out")
    assert code == 2 and str(tmp_path / "nowhere") in output
    folders.training(tmp_path / "grpo" / "exp_001")
    code, output = report(tmp_path / "grpo", "--out", tmp_path / "out")
    assert code == 2 and "(exp_001)" in output
    folders.nemo_rl(tmp_path / "nemo" / "math" / "exp_001", {"train/reward": {1: 0.5}})
    folders.nemo_rl(tmp_path / "nemo" / "exp_002", {"train/reward": {1: 0.25}})
    for above, names in (
        ("nemo", "exp_002, math/exp_001"),
        (".", "grpo/exp_001, nemo/exp_002, nemo/math/exp_001"),
    ):
        code, output = report(tmp_path / above, "--out", tmp_path / "out")
        assert code == 2 and f"({names})" in output
    run = folders.training(tmp_path / "bad")
    (run / "trace.jsonl").write_text('{"step": 1}\n')
    code, output = report(run, "--out", tmp_path / "out")
    assert code == 2 and "trace.jsonl line 1: group: " in output
    assert not (tmp_path / "out").exists()
    run = folders.evaluation(tmp_path / "e" / "math500")
    (run / "verdicts.jsonl").unlink()
    code, output = report(run, "--out", tmp_path / "out")
    assert code == 2 and "verdicts.jsonl is missing" in output


def test_a_run_that_is_still_going_has_its_last_line_cut(tmp_path):
    run = folders.training(tmp_path / "a")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 61, "rew')
    (read,) = read_runs([run])
    assert read.metrics["reward/mean"][0][-1] == 60


def test_labels_are_what_differs(tmp_path):
    def label(*names):
        return [run.label for run in read_runs([tmp_path / name for name in names])]

    for name in ("grpo/exp_001", "etr/exp_001", "grpo/exp_002"):
        folders.training(tmp_path / name, steps=2)
    folders.evaluation(tmp_path / "grpo/exp_001/eval-step-0/math500", problems=2)
    assert label("grpo/exp_001", "etr/exp_001") == ["grpo", "etr"]
    assert label("grpo/exp_001", "grpo/exp_002") == ["grpo/exp_001", "grpo/exp_002"]
    assert label("grpo/exp_001/eval-step-0", "grpo/exp_001") == ["grpo/eval-step-0", "grpo"]
    assert label("etr/exp_001") == ["etr/exp_001"]


def test_labels_and_configs_are_text_too(tmp_path):
    """A folder's name and a config's value with markup, in tables, figures and the legend."""
    names = ("<b>one</b>", "two & $x$ \udcff")
    runs = [folders.training(tmp_path / n, method=f"<i>{i}</i>") for i, n in enumerate(names)]
    html = write(runs, tmp_path / "out").read_text()
    assert "<b>one" not in html and "<i>0" not in html
    assert "&lt;b&gt;one" in html and "&lt;i&gt;0&lt;/i&gt;" in html and "two &amp; $x$ ?" in html


def test_a_run_that_died_is_drawn_and_one_that_is_broken_is_left_out(tmp_path, no_figures):
    """Of 30 steps the gradient is 0 in 29; a metric of step 1 alone has no last tenth."""
    run = tmp_path / "dead"
    run.mkdir()
    rows = [
        {"step": n, "reward/mean": 0.3 * (n == 1), "grad_norm": float(n == 1)} for n in range(1, 31)
    ]
    rows = [{**row, "groups/flat_share": float(row["step"] > 1)} for row in rows]
    rows[0]["clip/positive_above"] = 0.033
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    state = tmp_path / "trl" / "checkpoint-10" / "trainer_state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"log_history": [{"step": 1')
    code, said = report(run, state.parents[1], "--out", tmp_path / "out")
    assert code == 0, said
    page = (tmp_path / "out" / "index.html").read_text()
    assert "0 at 29 steps" in page and 'id="training_flat"' in page
    summary = page[page.index('id="summary"') : page.index('id="training"')]
    assert "0.033" not in summary and ">30<" in summary
    note = page[page.index("Left out: ") :].partition("</p>")[0]
    assert "trainer_state.json" in note and "emove" not in note and "elete" not in note
    assert state.exists()
    code, said = report(state.parents[1], "--out", tmp_path / "none")
    assert code == 2 and "trainer_state.json" in said and "emove" not in said

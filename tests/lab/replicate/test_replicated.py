"""Items made again from folders made by hand: verdicts, intervals, and what is missing."""

import csv
import json

import pytest
import yaml
from lab.replicate.folders import checkpoint, evaluation, of_two_problems, run

from nemo_algos.lab.replicate import manifest as manifests
from nemo_algos.lab.replicate.found import Value
from nemo_algos.lab.replicate.ours import other_run
from nemo_algos.lab.replicate.report import write
from nemo_algos.lab.replicate.seed import Seed
from nemo_algos.lab.replicate.table import verdict
from nemo_algos.lab.report.compare import interval_of_mean


def paper(name):
    return of_two_problems(manifests.paper(name))


BEST = [0.7, 0.8, 0.9, 0.92, 0.94, 0.95]  # k = 1 to 32
QWEN = "Qwen/Qwen3-8B-Base"


def made(folder, item="table1", name="etr", known=None):
    """(cells of the CSV by row and column, what is missing, the page)."""
    known = known or paper(name)
    (one,) = write(known, name, manifests.choose(known, item), [folder], folder / "out")
    with open(folder / "out" / f"{item}.csv") as file:
        cells = {(r["table"], r["row"], r["column"]): r for r in csv.DictReader(file)}
    return cells, one.missing, (folder / "out" / "index.html").read_text()


def etr(cells, column, row="GRPO", table="Qwen3-8B-Base"):
    return cells[table, row, column]


@pytest.mark.parametrize(
    ("low", "high", "spread", "expected"),
    [
        (0.40, 0.44, None, "below"),
        (0.46, 0.48, None, "within"),
        (0.48, 0.52, None, "above"),
        (0.48, 0.52, 0.02, "within"),
        (0.40, 0.44, 0.02, "below"),
        (None, None, None, ""),
    ],
)
def test_the_verdict_is_of_the_interval_against_the_printed_number(low, high, spread, expected):
    assert verdict(Value(0.45, low, high), 0.47, spread) == expected


def test_a_cell_stands_beside_its_printed_number(tmp_path):
    run(tmp_path / "etr/qwen3-8b/grpo", QWEN, name="grpo")
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.70, BEST, max_tokens=8192)
    cells, missing, page = made(tmp_path)
    cell = etr(cells, "amc23 mean")
    assert (float(cell["ours"]), float(cell["printed"]), cell["verdict"]) == (0.70, 0.713, "within")
    assert etr(cells, "amc23 best@32")["verdict"] == "within"
    assert "printed 0.713" in page and "One seed" in page
    assert "qwen3-8b/etr: no run" in missing and "qwen3-8b/base: not evaluated" in missing
    assert "qwen3-8b/grpo: not evaluated on aime24 (eval/aime24)" in missing


def test_a_wrong_number_is_above_or_below(tmp_path):
    run(tmp_path / "etr/qwen3-8b/grpo", QWEN, name="grpo")
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.90, BEST, max_tokens=8192)
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "aime24", 0.05, BEST, max_tokens=8192)
    cells, _, page = made(tmp_path)
    assert etr(cells, "amc23 mean")["verdict"] == "above"
    assert etr(cells, "aime24 mean")["verdict"] == "below"
    assert 'class="above"' in page and 'class="below"' in page


def test_an_average_needs_all_of_its_benchmarks(tmp_path):
    folder = tmp_path / "etr/qwen3-8b/base"
    for benchmark, mean in [("amc23", 0.3), ("aime24", 0.1), ("aime25", 0.0)]:
        evaluation(folder, benchmark, mean, BEST, model=QWEN, max_tokens=8192)
    average = "amc23+aime24+aime25+math500 mean"
    cells, missing, _ = made(tmp_path)
    assert "math500" in etr(cells, average, "Base Model")["missing"]
    assert "qwen3-8b/base: not evaluated on acpbench_mcq (eval/acpbench_mcq)" in missing
    evaluation(folder, "math500", 0.4, BEST, model=QWEN, max_tokens=8192)
    cell = etr(made(tmp_path)[0], average, "Base Model")
    assert float(cell["ours"]) == pytest.approx(0.2)
    assert float(cell["high"]) == pytest.approx(0.2 + 4**0.5 * 0.05 / 4)  # half-widths in squares


def test_what_has_too_few_samples_is_missing(tmp_path):
    run(tmp_path / "etr/qwen3-8b/grpo", QWEN, name="grpo")
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST[:4], max_tokens=8192)
    cells, _, _ = made(tmp_path)
    assert etr(cells, "amc23 mean")["verdict"] == "within"
    assert "best@32 of 8 samples" in etr(cells, "amc23 best@32")["missing"]


@pytest.mark.parametrize(
    ("recorded", "word"),
    [
        ({"model": "Qwen/Qwen3-1.7B-Base", "name": "grpo"}, "Qwen/Qwen3-1.7B-Base"),
        ({"model": QWEN, "name": "grpo", "clip_high": 0.28}, "0.28"),
        ({"model": QWEN, "name": "etr"}, "etr"),
    ],
)
def test_a_run_of_another_model_or_method_is_not_used(tmp_path, recorded, word):
    run(tmp_path / "etr/qwen3-8b/grpo", **recorded)
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST, max_tokens=8192)
    cells, missing, page = made(tmp_path)
    assert etr(cells, "amc23 mean")["ours"] == ""
    (said,) = [line for line in missing if "another" in line]
    assert word in said and said in page.replace("&#39;", "'")


@pytest.mark.parametrize(
    ("said", "config"),
    [
        ("Qwen/Other", {"policy": {"model_name": "Qwen/Other"}}),
        ("0.28", {"loss_fn": {"ratio_clip_max": 0.28}}),
        ("1e-05", {"policy": {"optimizer": {"kwargs": {"lr": 1e-05}}}}),
        ("use_dynamic_sampling", {"grpo": {"use_dynamic_sampling": True}}),
        ("math_train.jsonl", {"data": {"train": {"data_path": "/data/other.jsonl"}}}),
    ],
)
def test_a_run_by_hand_is_judged_by_the_config_of_its_checkpoint(tmp_path, said, config):
    """QUATRO's GRPO; the keys that make it another run are NeMo-RL's own."""
    folder = tmp_path / "quatro/qwen2.5-math-1.5b/grpo"
    checkpoint(folder, 10, config)
    evaluation(folder, "math500", 0.7, BEST[:2], max_tokens=1024, top_p=0.7)
    known = paper("quatro")
    changed = known.methods["grpo"].model_copy(
        update={"overrides": ["grpo.use_dynamic_sampling=false"]}
    )
    known = known.model_copy(update={"methods": {**known.methods, "grpo": changed}})
    cells, missing, _ = made(tmp_path, "tableII", "quatro", known)
    assert cells["MATH500, Qwen2.5-Math-1.5B", "GRPO", "math500 pass@1"]["ours"] == ""
    assert any(said in line and "not used" in line for line in missing)


def test_a_run_by_hand_of_the_manifests_keys_is_used(tmp_path):
    folder = tmp_path / "quatro/qwen2.5-math-1.5b/dapo"
    optimizer = {"kwargs": {"lr": 1e-06, "weight_decay": 0}}
    own = {"model_name": "Qwen/Qwen2.5-Math-1.5B", "optimizer": optimizer}
    grpo = {"use_dynamic_sampling": True, "batch_multiplier": 3.0, "seed": 7, "val_period": 99}
    loss = {"ratio_clip_max": 0.28, "token_level_loss": True}
    data = {"train": {"data_path": "/elsewhere/data/math_train.jsonl"}}
    checkpoint(folder, 10, {"policy": own, "grpo": grpo, "loss_fn": loss, "data": data})
    evaluation(folder, "math500", 0.7, BEST[:2], max_tokens=1024, top_p=0.7)
    cells, _, _ = made(tmp_path, "tableII", "quatro")
    assert cells["MATH500, Qwen2.5-Math-1.5B", "DAPO", "math500 pass@1"]["ours"] != ""


def test_defaults_may_be_written(tmp_path):
    run(tmp_path / "etr/qwen3-8b/grpo", QWEN, name="grpo", clip_high=0.2)
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST, max_tokens=8192)
    assert etr(made(tmp_path)[0], "amc23 mean")["verdict"] == "within"


@pytest.mark.parametrize(
    ("model", "more", "word"),
    [
        ("served", {"temperature": 0.6, "max_tokens": 8192}, "temperature 0.6"),
        ("served", {"max_tokens": 1024}, "max_tokens 1024"),
        (QWEN, {"max_tokens": 8192}, QWEN),
    ],
)
def test_another_evaluation_is_not_used(tmp_path, model, more, word):
    run(tmp_path / "etr/qwen3-8b/grpo", QWEN, name="grpo")
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST, model=model, **more)
    cells, missing, _ = made(tmp_path)
    assert etr(cells, "amc23 mean")["ours"] == ""
    assert any(word in line for line in missing)


@pytest.mark.parametrize(("epochs", "said"), [(3, ""), (1, "sft.max_num_epochs"), (None, "method")])
def test_a_run_of_nemo_rls_own_program_is_known_by_its_keys(tmp_path, epochs, said):
    folder, base = tmp_path / "erpo/qwen2.5-3b/sft", "Qwen/Qwen2.5-3B"
    if epochs is None:
        run(folder, base, name="erpo")
    else:
        kept = {"policy": {"model_name": base}, "sft": {"max_num_epochs": epochs}}
        (folder / "checkpoints/step_7").mkdir(parents=True)
        (folder / "checkpoints/step_7/config.yaml").write_text(yaml.safe_dump(kept))
    wrong = other_run(paper("erpo"), "qwen2.5-3b/sft", Seed(folder))
    assert said in wrong and bool(wrong) == bool(said)


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("etr/qwen3-8b/etr", {"model": "etr/qwen3-8b/etr"}),
        ("quatro/qwen3-8b/grpo", {"model": "quatro/qwen3-8b/grpo"}),
        ("etr/qwen3-8b/etr", {"model": "/runs/etr/qwen3-8b/etr/hf"}),
        ("dapo_math_verify", {"verifier": "dapo_math_verify"}),
    ],
)
def test_an_evaluation_of_another_run_or_verifier_is_not_used(tmp_path, said, more):
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST, max_tokens=8192, **more)
    cells, missing, _ = made(tmp_path)
    assert etr(cells, "amc23 mean")["ours"] == ""
    assert any(said in line and "not used" in line for line in missing)


@pytest.mark.parametrize("served", ["etr/qwen3-8b/grpo", "/runs/etr/qwen3-8b/grpo/hf", "mine"])
def test_an_evaluation_served_under_the_runs_name_is_used(tmp_path, served):
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST, model=served, max_tokens=8192)
    assert etr(made(tmp_path)[0], "amc23 mean")["verdict"] == "within"


def test_a_part_of_a_benchmark_is_not_the_benchmark(tmp_path):
    evaluation(tmp_path / "etr/qwen3-8b/grpo", "amc23", 0.7, BEST, max_tokens=8192)
    cells, missing, _ = made(tmp_path, known=manifests.paper("etr"))
    assert etr(cells, "amc23 mean")["ours"] == ""
    assert any("2 problems, not 40" in line for line in missing)


def test_a_base_row_is_of_the_base_model(tmp_path):
    other = "Qwen/Qwen3-8B"
    evaluation(tmp_path / "etr/qwen3-8b/base", "amc23", 0.3, BEST, model=other, max_tokens=8192)
    cells, missing, _ = made(tmp_path)
    assert etr(cells, "amc23 mean", "Base Model")["ours"] == ""
    assert any(f"evaluates {other}, not {QWEN}" in line for line in missing)


def test_several_seeds_give_their_own_interval_in_percent(tmp_path):
    means = [0.75, 0.76, 0.78]
    for seed, mean in enumerate(means, 1):
        folder = tmp_path / f"apmpo/qwen2.5-math-1.5b/grpo-seed{seed}"
        run(folder, "Qwen/Qwen2.5-Math-1.5B-Instruct", name="grpo")
        evaluation(folder, "math500", mean, BEST[:5], temperature=0.6)
    cells, _, page = made(tmp_path, name="apmpo")
    cell = cells["Qwen2.5-Math-1.5B-Instruct", "GRPO", "math500 mean"]
    mean, low, _ = interval_of_mean([100 * mean for mean in means])
    assert float(cell["ours"]) == pytest.approx(mean)
    assert float(cell["low"]) == pytest.approx(low)
    assert cell["seeds"] == "3" and "One seed" not in page


def test_fewer_seeds_than_the_paper_has_are_said(tmp_path):
    folder = tmp_path / "apmpo/qwen2.5-math-1.5b/grpo"
    run(folder, "Qwen/Qwen2.5-Math-1.5B-Instruct", name="grpo")
    evaluation(folder, "math500", 0.752, BEST[:5], temperature=0.6)
    assert "The paper has 3 seeds, here are 1." in made(tmp_path, name="apmpo")[2]


def test_seeds_that_lack_a_number_are_named_beside_those_that_have_one(tmp_path):
    for seed in (1, 2):
        folder = tmp_path / f"apmpo/qwen2.5-math-1.5b/grpo-seed{seed}"
        run(folder, "Qwen/Qwen2.5-Math-1.5B-Instruct", name="grpo")
    evaluation(folder, "math500", 0.752, BEST[:5], temperature=0.6)
    cells, missing, _ = made(tmp_path, name="apmpo")
    cell = cells["Qwen2.5-Math-1.5B-Instruct", "GRPO", "math500 mean"]
    assert float(cell["ours"]) == pytest.approx(75.2)
    assert "qwen2.5-math-1.5b/grpo-seed1: not evaluated on math500 (eval/math500)" in missing
    assert "qwen2.5-math-1.5b/grpo: no run of seed 3" in missing


def test_seeds_without_a_curve_are_named_beside_those_that_have_one(tmp_path):
    folder = tmp_path / "apmpo/qwen2.5-math-1.5b"
    run(folder / "grpo-seed1", "Qwen/Qwen2.5-Math-1.5B-Instruct", name="grpo")
    (folder / "grpo-seed3").mkdir()
    known = paper("apmpo")
    chosen = manifests.choose(known, "figure1b")
    (one,) = write(known, "apmpo", chosen, [tmp_path], tmp_path / "out")
    assert "qwen2.5-math-1.5b/grpo: no run of seed 2" in one.missing
    assert any("grpo-seed3: entropy" in reason for reason in one.missing)


def test_a_number_of_training_is_the_mean_of_the_last_ten_steps(tmp_path):
    folder = tmp_path / "quatro/qwen2.5-math-1.5b/gspo"
    run(folder, "Qwen/Qwen2.5-Math-1.5B", steps=12, name="gspo")
    cells, missing, _ = made(tmp_path, "table2", "quatro")
    cell = cells["", "Entropy", "qwen2.5-math-1.5b/gspo entropy"]
    assert float(cell["ours"]) == pytest.approx(1 - 0.05 * 7.5)  # of steps 3 to 12
    assert cell["verdict"] == "" and cell["low"] == ""
    assert "qwen2.5-math-1.5b/dapo: no run" in missing


def test_curves_are_drawn_of_what_is_there(tmp_path):
    run(tmp_path / "etr/qwen3-8b/etr", QWEN, name="etr")
    known = paper("etr")
    out = tmp_path / "out"
    (one,) = write(known, "etr", manifests.choose(known, "figure5"), [tmp_path], out)
    assert (out / "figure5_entropy.png").stat().st_size > 1000
    assert one.missing == ["qwen3-8b/grpo: no run", "qwen3-8b/clip-high: no run"]


def test_every_checkpoint_is_a_point_of_its_curve(tmp_path):
    folder = tmp_path / "etr/qwen3-8b/etr"
    run(folder, QWEN, name="etr")
    for step, mean in [(50, 0.25), (100, 0.5)]:
        best = [mean + x for x in (0, 0.1, 0.1, 0.1, 0.1, 0.2)]
        evaluation(folder, "aime24", mean, best, into=f"eval-step-{step}", max_tokens=8192)
    evaluation(folder, "aime24", 0.9, BEST, into="eval-step-150", max_tokens=1)  # sampled otherwise
    checkpoint(folder, 200, {})
    known = paper("etr")
    (one,) = write(known, "etr", manifests.choose(known, "figure4"), [tmp_path], tmp_path / "out")
    drawn = {figure.name: figure.lines for figure in one.figures}
    assert set(drawn) == {"figure4_aime24_mean", "figure4_aime24_best_32"}
    (mean,), (best,) = drawn.values()
    assert (mean.x, mean.y) == ([50, 100], [0.25, 0.5])
    assert best.y == pytest.approx([0.45, 0.7])
    assert "qwen3-8b/grpo: no run" in one.missing
    lacking = [reason for reason in one.missing if "etr/etr" not in reason]
    for step, benchmark in [(50, "aime25"), (100, "aime25"), (200, "aime24"), (200, "aime25")]:
        said = f"qwen3-8b/etr: not evaluated on {benchmark} (eval-step-{step}/{benchmark})"
        assert said in lacking
    assert any("eval-step-150" in reason for reason in one.missing)


def test_an_empty_folder_lacks_every_run(tmp_path):
    cells, missing, _ = made(tmp_path, "table4", "quatro")
    assert not any(cell["ours"] for cell in cells.values())
    assert missing == [f"qwen2.5-coder-1.5b/{m}: no run" for m in ("gspo", "delta0.01")]


def test_the_pairs_of_a_problem_are_drawn_side_by_side(tmp_path):
    known, out = paper("quatro"), tmp_path / "out"
    for name, texts in (("gspo", ["same", "same"]), ("delta0.001", ["one", "two"])):
        folder = tmp_path / "quatro/qwen2.5-math-1.5b" / name
        run(folder, "Qwen/Qwen2.5-Math-1.5B", **known.methods[name].method)
        evaluation(folder, "math500", 0.7, BEST[:2], max_tokens=1024, top_p=0.7)
        lines = [
            {"problem": "a", "sample": i, "response": t, "tokens": 1, "finish": "", "key": ""}
            for i, t in enumerate(texts)
        ]
        stored = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "eval/math500/generations.jsonl").write_text(stored)
    wanted = known, "quatro", manifests.choose(known, "figureIII"), [tmp_path], out
    (one,) = write(*wanted)
    assert one.missing == []
    rows = list(csv.reader((out / "figureIII_math500_tfidf.csv").read_text().splitlines()))
    assert [row[2:] for row in rows[1:]] == [["1", "1"], ["1", "1"], ["1", "0"], ["0", "1"]]
    (folder / "eval/math500/generations.jsonl").unlink()
    (one,) = write(*wanted)
    assert not one.figures and str(folder) in one.missing[0]

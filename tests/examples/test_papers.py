"""The papers' manifests, the commands that their script prints, and a table of planted folders."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from doc_commands import blocks
from matrix import some_of
from releases import MAIN
from says import Says
from scipy import stats
from typer.testing import CliRunner

from nemo_algos.config import apply_overrides, find, load, read, resolve
from nemo_algos.lab.evals.schema import parse_config
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import check, judge
from nemo_algos.preflight.check.local.judge import parse

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples/papers/replicate.py"
SPEC = importlib.util.spec_from_file_location("replicate_papers", FILE)
assert SPEC and SPEC.loader
papers = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = papers
SPEC.loader.exec_module(papers)

TEXTS = [folder / "shared" / "papers" for folder in ROOT.parents]
FOUR = ("etr", "quatro", "erpo", "apmpo")
PAPERS = {name: papers.read(name) for name in papers.NAMES}
ITEMS = [(name, item) for name, paper in PAPERS.items() for item in paper.items]
ROWS = [
    pytest.param(name, item, block, row, id=f"{name}-{item}-{block.title}-{row.label}")
    for name, item in ITEMS
    if name in FOUR
    for block in PAPERS[name].items[item].blocks
    for row in block.rows
    if row.printed
]


# ---- the manifests


def test_the_manifests_are_the_four_papers_and_the_toy():
    assert sorted([*FOUR, "toy"]) == papers.NAMES
    printed = {
        name: sum(c.printed is not None for i in paper.items.values() for c in i.cells)
        for name, paper in PAPERS.items()
    }
    assert printed == {"etr": 156, "quatro": 869, "erpo": 364, "apmpo": 612, "toy": 18}


def text_of(name):
    path = next((t / f"{name}.txt" for t in TEXTS if (t / f"{name}.txt").exists()), None)
    if path is None:
        pytest.skip("shared/papers is not at hand: the papers' texts are not in the repository")
    return path.read_text()


def numbers(line):
    return [float(x) for x in re.findall(r"(?<![\w.])\d*\.?\d+(?![\w.])", line.replace("±", " "))]


def in_order(wanted, line):
    there = iter(numbers(line))
    return all(any(x == number for x in there) for number in wanted)


@pytest.mark.parametrize(("name", "item", "block", "row"), ROWS)
def test_printed_numbers_stand_in_one_line_of_the_paper(name, item, block, row):
    printed = [x for x in row.printed if x is not None]
    assert any(in_order(printed, line) for line in text_of(name).splitlines()), printed
    spread = [x for x in row.spread if x is not None]
    assert any(in_order(spread, line) for line in text_of(name).splitlines()), spread


@pytest.mark.parametrize(("name", "item", "block", "row"), ROWS)
def test_a_printed_average_follows_from_its_cells_or_is_a_misprint(name, item, block, row):
    cells = block.cells(row)
    known = {(*c.benchmarks, c.metric): c.printed for c in cells}
    for cell in (c for c in cells if len(c.benchmarks) > 1 and c.printed is not None):
        parts = [known.get((benchmark, cell.metric)) for benchmark in cell.benchmarks]
        if None in parts:
            continue
        digits = max(len(str(x).partition(".")[2]) for x in [*parts, cell.printed])
        if abs(sum(parts) / len(parts) - cell.printed) > 0.51 * 10**-digits:
            said = [m.says for m in PAPERS[name].misprints if m.item == item]
            assert any(f"{cell.printed:g}" in sentence for sentence in said), (row.label, parts)


def test_a_curve_over_k_that_falls_is_a_misprint():
    fell = [
        (row.label, before, after)
        for first, second in pairwise(PAPERS["quatro"].items["table3"].blocks)
        for row, other in zip(first.rows, second.rows, strict=True)
        for before, after in zip(row.printed, other.printed, strict=True)
        if after < before
    ]
    assert fell == [("OlympiadBench", 15.80, 11.32)]
    assert any("11.32" in m.says for m in PAPERS["quatro"].misprints)


@pytest.mark.parametrize("name", PAPERS)
def test_samples_are_enough_for_every_k(name):
    paper = PAPERS[name]
    for item in paper.items.values():
        for cell in item.cells:
            k = int(cell.metric.partition("@")[2] or 1)
            for benchmark in (b for b in cell.benchmarks if b != papers.TRAIN):
                config = paper.config(paper.evaluation(item, cell, benchmark), cell.run)
                assert k <= config["sampling"]["samples"], cell


@pytest.mark.parametrize("name", FOUR)
def test_adapters_and_images_are_the_recipes(name):
    for model in (m for m in PAPERS[name].models.values() if m.recipe):
        plain = compose(read(find(model.recipe)), MAIN).plain
        assert model.base == plain["policy"]["model_name"]
        assert model.adapter == plain["policy"]["dtensor_cfg"]["lora_cfg"]["enabled"]
        assert model.images == (
            plain["data"]["default"].get("processor") == "vlm_hf_data_processor"
        )


MANIFEST = yaml.safe_load((FILE.parent / "etr.yaml").read_text())


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("claims", "x", "etr.claims: claim"),
        ("items.table1.kind", "tabel", "etr.items.table1.kind: tabel"),
        ("items.table1.blocks.0.rows.0.printed", [0.5], "etr.items.table1.blocks.0: Base 13 null"),
        ("items.table1.blocks.0.rows.0.run", "", "etr.items.table1.blocks.0: run benchmark"),
        ("items.table1.blocks.0.rows.0.run", "qwen3-8b/ert", "etr: items.table1 ert etr"),
        ("items.table1.blocks.0.columns.0", "amc23", "etr.items.table1.blocks.0.columns.0: amc23"),
        ("items.table1.evaluations", ["maths"], "etr: items.table1 maths math"),
        ("models.qwen3-8b.recipes", "x", "etr.models.qwen3-8b.recipes: recipe"),
        ("settings.0", ["a", "b"], "etr.settings.0: 3"),
        ("misprints", [{"item": "table9", "says": "x"}], "etr: misprints table9"),
    ],
)
def test_a_manifest_that_is_wrong_is_one_sentence(path, value, said, tmp_path, monkeypatch):
    plain = json.loads(json.dumps(MANIFEST))
    *above, last = (int(x) if x.isdecimal() else x for x in path.split("."))
    section = plain
    for key in above:
        section = section[key]
    section[last] = value
    (tmp_path / "etr.yaml").write_text(json.dumps(plain))
    monkeypatch.setattr(papers, "HERE", tmp_path)
    papers.read.cache_clear()
    with pytest.raises(ValueError) as wrong:
        papers.read("etr")
    papers.read.cache_clear()
    (line,) = str(wrong.value).splitlines()
    assert line == Says(said)


# ---- plan and commands


def lines_of(name, item="", *, keys="", slurm="", trained=False):
    paper = PAPERS[name]
    items = {item: paper.items[item]} if item else paper.items
    return list(papers.commands(paper, items, Path("runs"), keys, slurm, trained))


def test_more_keys_are_of_every_training_alone():
    plain = lines_of("etr", "table1")
    longer = lines_of("etr", "table1", keys="grpo.max_num_steps=500")
    trainings = [line for line in plain if line.startswith("nemo-algos train")]
    assert len(trainings) == 9
    assert [
        f"{line} grpo.max_num_steps=500" if line in trainings else line for line in plain
    ] == longer


def planned(*more):
    """(hours of a run of each model, the sum) of ETR's plan; the runs have this many steps."""
    text = "\n".join(papers.plan(PAPERS["etr"], PAPERS["etr"].items, more))
    steps = more[0].partition("=")[2] if more else "272"
    hours = [float(cell) for cell in re.findall(rf"\| ([\d.]+) for {steps} steps", text)]
    total = re.search(r"All of these runs, whole: ([\d,]+) H100", text)[1]
    return hours, int(total.replace(",", ""))


def test_the_plans_hours_are_those_of_every_whole_run():
    """12 runs of 272 steps, 6, 3 and 3 of the models; of 544 steps they cost twice as much."""
    hours, total = planned()
    assert len(hours) == 3
    assert total == pytest.approx(6 * hours[0] + 3 * hours[1] + 3 * hours[2], abs=1)
    longer, twice = planned("grpo.max_num_steps=544")
    assert longer == pytest.approx([2 * one for one in hours], abs=0.2)
    assert twice == pytest.approx(2 * total, abs=2)


STEPS = {"etr": {272}, "quatro": {870, 570}, "erpo": {698}, "apmpo": {400}, "toy": {24}}


@pytest.mark.parametrize("name", PAPERS)
def test_every_training_has_its_papers_steps(name):
    trained = [line for line in lines_of(name) if line.startswith("nemo-algos train")]
    written = [re.findall(r" grpo\.max_num_steps=(\d+) ", line) for line in trained]
    assert {int(steps) for (steps,) in written} == STEPS[name]
    coder = [line for line in trained if "coder-1.5b" in line]
    assert all("max_num_steps=570 " in line for line in coder)


@pytest.mark.parametrize("name", FOUR)
def test_the_epochs_of_a_run_last_for_its_steps(name):
    """NeMo-RL leaves out an epoch's last, smaller batch; dynamic sampling draws larger ones."""
    paper = PAPERS[name]
    rows = {key: re.match(r"([\d,]+) rows", text) for key, text in paper.data.items()}
    for run in dict.fromkeys(run for item in paper.items.values() for run in item.needed_runs):
        model, method = paper.parts(run)
        known = rows[model.data[0]] if model.data else None
        if known is None or not method.method:
            continue
        keys = [*paper.training_keys(model), *method.overrides]
        grpo = compose(apply_overrides(read(find(model.recipe)), keys), MAIN).plain["grpo"]
        drawn = grpo["num_prompts_per_step"] * (
            grpo["batch_multiplier"] if grpo["use_dynamic_sampling"] else 1
        )
        batches = int(known[1].replace(",", "")) // drawn
        assert grpo["max_num_epochs"] * batches >= grpo["max_num_steps"], run


@pytest.mark.parametrize("name", PAPERS)
def test_the_page_is_what_plan_prints(name):
    lines = papers.plan(PAPERS[name], PAPERS[name].items)
    page = ROOT / "docs" / "papers" / f"{name}.md"
    assert name == "toy" or page.read_text() == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("share", some_of(range(3), 1))
def test_every_command_is_one_that_check_and_eval_accept(name, share):
    script = "\n".join(lines_of(name))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    trained, evaluated = {}, {}  # in their order
    for line in script.splitlines():
        words = shlex.split(line)
        if words[:2] == ["nemo-algos", "train"]:
            kept = [
                w
                for w in words[2:]
                if not w.startswith(("grpo.seed", "logger.", "checkpointing.checkpoint_dir"))
            ]
            kept = kept[: kept.index("--resume")] if "--resume" in kept else kept
            trained[tuple(kept)] = None
        if words[:2] == ["nemo-algos", "eval"]:
            kept = tuple(w for w in words[2:] if not w.startswith(("out=", "model.")))
            evaluated[kept] = None
    assert trained and evaluated
    for recipe, *keys in [*trained][share::3]:
        written = apply_overrides(read(find(recipe)), keys)
        if written.engine == "local":
            parse(resolve(written))
            continue
        found = judge(written, MAIN)[1]
        assert not [f for f in found if f.severity != "note"], (recipe, keys)
    for config, *keys in [*evaluated][share::3]:
        model = {"engine": "endpoint", "name": "x"}
        parse_config(
            {**load(find(config), keys), "model": model}
            if "perturbed" not in config
            else load(find(config), keys)
        )


def test_the_last_checkpoint_is_converted_served_and_asked():
    script = "\n".join(lines_of("etr", "table1"))
    own = script.split("# etr/qwen2.5-math-7b/etr\n")[1]
    folder = Path("runs/etr/qwen2.5-math-7b/etr").resolve()
    assert f"method.name=etr checkpointing.checkpoint_dir={folder}/checkpoints" in own
    assert f"ls -d {folder}/checkpoints/step_* | sort -V | tail -n 1" in own
    assert f"serve {folder}/hf/${{step##*/}} --served-model-name etr/qwen2.5-math-7b/etr" in own
    asked = f"model.name=etr/qwen2.5-math-7b/etr out={folder}/eval\n"
    assert f"nemo-algos eval eval/etr_ood.yaml sampling.max_tokens=3584 {asked}" in own
    base = script.split("# etr/qwen3-8b/base\n")[1].split("#")[0]
    assert base.startswith("serve Qwen/Qwen3-8B-Base --served-model-name etr/qwen3-8b/base\n")
    assert "train" not in base and "convert" not in base


def test_evaluations_of_a_run_share_a_server():
    """Nine runs and three models of Table 1 are asked for two evaluations each."""
    lines = [line.strip() for line in lines_of("etr", "table1")]
    assert sum(line.startswith("serve ") for line in lines) == 12
    asked = [line for line in lines if line.startswith("nemo-algos eval")]
    assert len(asked) == 24 and lines.count(papers.STOP) == 12
    script = "\n".join(lines_of("etr", trained=True))
    own = script.split("# etr/qwen3-8b/etr\n")[1].split("# ")[0]
    assert own.count("serve ") == 2 and own.count("eval-step-${step##*_}") == 1
    assert own.count("| tail -n 1)") == 1


def test_every_checkpoint_adapters_images_and_other_programs():
    assert "eval-step-${step##*_}" in "\n".join(lines_of("etr", "figure4"))
    text = "\n".join(lines_of("erpo", "table1"))
    lora = "--lora-modules erpo/qwen2.5-7b/erpo=$step/policy/weights/model"
    assert f"serve Qwen/Qwen2.5-7B --enable-lora --max-lora-rank 64 {lora}" in text
    assert text.count("python examples/run_sft.py") == text.count("convert_dcp_to_hf.py") == 3
    assert "policy.model_name=Qwen/Qwen2.5-7B " in text
    assert "AutoProcessor" in "\n".join(lines_of("apmpo", "table5"))


def test_seeds_slurm_and_evaluations_alone():
    trained = [line for line in lines_of("apmpo", "table8") if " train " in line]
    assert len(trained) == 6 * 3 and " grpo.seed=3 " in trained[2]
    assert "/apmpo/qwen2.5-math-1.5b/linear-seed3/checkpoints" in trained[2]
    job = lines_of("etr", "figure5", slurm="--account A --submit")[-1]
    assert job.startswith("nemo-algos slurm recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml ")
    assert job.endswith("/etr/qwen3-8b --name etr --account A --submit")
    jobs = lines_of("erpo", "table1", slurm="--submit")
    assert not [line for line in jobs if line.startswith("python") or "vllm" in line][1:]
    assert (
        sum(line.startswith("# no job of ours: python examples/run_sft.py") for line in jobs) == 3
    )
    alone = "\n".join(lines_of("etr", "table1", trained=True))
    assert "nemo-algos eval" in alone and "nemo-algos train" not in alone


# ---- a manifest of one's own


def page_block(page, first):
    """The fence of a page of docs/ that begins with this line."""
    (found,) = (b for b in blocks((ROOT / "docs" / page).read_text()) if b.body.startswith(first))
    return found.body


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The path of the manifest in docs/papers, beside the method of docs/add_a_method.md."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_package").mkdir()
    method = page_block("add_a_method.md", "# my_package/my_module.py")
    (tmp_path / "my_package/my_module.py").write_text(method)
    (tmp_path / "mine.yaml").write_text(page_block("papers/index.md", "# mine.yaml"))
    return "./mine.yaml"


def done(*words):
    app = papers.typer.Typer()
    app.command()(papers.main)
    return CliRunner().invoke(app, words)


def test_the_pages_manifest_is_planned_trained_and_read(own, tmp_path):
    planned = done("plan", own)
    assert planned.exit_code == 0
    assert "| qwen3-8b | Qwen/Qwen3-8B-Base | " in planned.output and "| 4 |" in planned.output
    given = ("--model", "qwen3-8b=me/mine-8b")
    script = done("commands", own, *given, "--keys", "grpo.seed=7").output
    trained = [line for line in script.splitlines() if line.startswith("nemo-algos train")]
    for line in trained:
        assert "policy.model_name=me/mine-8b" in line and "grpo.max_num_steps=300" in line
        words = shlex.split(line)[2:]
        assert not [f for f in check(words[0], words[1:], MAIN) if f.severity == "error"]
    (mine,) = (line for line in trained if "mine-seed2" in line)
    assert "method.name=my_package.my_module:MINE method.widen=1.0" in mine
    assert "serve me/mine-8b --served-model-name mine/qwen3-8b/base" in script
    method = {"name": "my_package.my_module:MINE", "widen": 1.0}
    for seed in (1, 2):
        plant_run(tmp_path / f"runs/mine/qwen3-8b/mine-seed{seed}", "me/mine-8b", **method)
    read_own = papers.with_models(papers.read(own), ["qwen3-8b=me/mine-8b"])
    folder = tmp_path / "runs/mine/qwen3-8b/mine-seed1"
    steps, entropy = papers.trained_series(read_own, "qwen3-8b/mine", "entropy", folder)
    assert steps[-1] == 12 and entropy[-1] == pytest.approx(0.4)
    with pytest.raises(papers.Absent):
        papers.trained_series(papers.read(own), "qwen3-8b/mine", "entropy", folder)
    papers.read.cache_clear()


# ---- the table

BEST = [0.7, 0.8, 0.9, 0.92, 0.94, 0.95]  # k = 1 to 32
QWEN = "Qwen/Qwen3-8B-Base"


def plant_evaluation(
    folder, benchmark, mean, problems, model, best=BEST, verifier="math", **sampling
):
    """FOLDER/BENCHMARK: its mean, and best@k at k = 1, 2, 4, ..., each with an interval of ±.05."""
    place = folder / benchmark
    place.mkdir(parents=True)
    ks = [2**i for i in range(len(best))]
    curve = {
        "k": ks,
        "value": best,
        "low": [x - 0.05 for x in best],
        "high": [x + 0.05 for x in best],
    }
    ids = [str(i) for i in range(problems)]
    settings = {"ucc_similarity": "tfidf", "ucc_threshold": 0.8, "linkage": "single"}
    settings |= {"embedding_model": "", "resamples": 10, "seed": 0}
    measured = {
        "benchmark": benchmark,
        "problems": problems,
        "samples": ks[-1],
        "ids": ids,
        "correct": [0] * problems,
        "statuses": {},
        "scalars": {"mean": {"value": mean, "low": mean - 0.05, "high": mean + 0.05}},
        "curves": {"pass@k": curve, "best@k": curve},
        "per_problem": {"mean": [mean] * problems, "clusters": [0] * problems},
        "settings": settings,
    }
    (place / "metrics.json").write_text(json.dumps(measured))
    asked = {"samples": ks[-1], "temperature": 1.0, "top_p": 1.0, "max_tokens": 8192} | sampling
    manifest = {"model": {"engine": "endpoint", "model": model}, "benchmark": benchmark}
    manifest |= {"sampling": asked, "verifier": verifier}
    (place / "manifest.json").write_text(json.dumps(manifest))


def plant_run(folder, model, steps=12, **method):
    """A training run's folder, its entropy falling from 1 by 0.05 a step."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"policy": {"model_name": model}, "method": method}
    (folder / "manifest.json").write_text(json.dumps({"config": config}))
    rows = [{"step": i, "entropy/exact": 1 - 0.05 * i} for i in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def table(runs, item, name="etr"):
    """(the cells by row and column of the first block, all lines)."""
    papers.read_folder.cache_clear()
    paper = PAPERS[name]
    lines = list(papers.table(paper, {item: paper.items[item]}, runs))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[0:1] == "|"]
    block = paper.items[item].blocks[:1]
    cells = {
        (row.label, column): text
        for b in block
        for row, texts in zip(b.rows, rows[1:], strict=False)
        for column, text in zip(b.columns, texts[1:], strict=True)
    }
    return cells, lines


def test_our_number_stands_beside_the_printed_one(tmp_path):
    folder = tmp_path / "etr/qwen3-8b/grpo/eval"
    plant_evaluation(folder, "amc23", 0.70, 40, "etr/qwen3-8b/grpo")
    plant_evaluation(folder, "aime24", 0.05, 30, "etr/qwen3-8b/grpo", best=BEST[:4])
    plant_evaluation(folder, "aime25", 0.40, 30, "etr/qwen3-8b/grpo")
    cells, lines = table(tmp_path, "table1")
    assert cells["GRPO", "amc23 mean"] == "0.700 [0.650, 0.750] (0.713, within)"
    assert cells["GRPO", "amc23 best@32"] == "0.950 [0.900, 1] (0.949, within)"
    assert cells["GRPO", "aime24 mean"].endswith("(0.16, below)")
    assert cells["GRPO", "aime25 mean"].endswith("(0.228, above)")
    assert cells["GRPO", "aime24 best@32"] == "– (0.344)"  # noqa: RUF001
    missing = [line for line in lines if line.startswith("- missing")]
    assert any("best@32 of 8 samples" in line for line in missing)
    assert any("grpo/eval: math500 is not evaluated" in line for line in missing)
    assert any("no " in line and "etr/qwen3-8b/etr/eval" in line for line in missing)


def test_a_mean_over_benchmarks_needs_all_and_adds_half_widths_in_squares(tmp_path):
    for benchmark, mean, size in [("amc23", 0.3, 40), ("aime24", 0.1, 30), ("aime25", 0.0, 30)]:
        plant_evaluation(
            tmp_path / "etr/qwen3-8b/base/eval", benchmark, mean, size, "etr/qwen3-8b/base"
        )
    average = "amc23+aime24+aime25+math500 mean"
    assert table(tmp_path, "table1")[0]["Base Model", average].startswith("–")  # noqa: RUF001
    plant_evaluation(tmp_path / "etr/qwen3-8b/base/eval", "math500", 0.4, 500, "etr/qwen3-8b/base")
    half = 4**0.5 * 0.05 / 4
    wanted = f"0.200 [{0.2 - half:.3f}, {0.2 + half:.3f}] (0.187, within)"
    assert table(tmp_path, "table1")[0]["Base Model", average] == wanted


def test_several_seeds_have_students_interval_in_percent(tmp_path):
    means = [0.75, 0.76, 0.78]
    for seed, mean in enumerate(means, 1):
        place = f"apmpo/qwen2.5-math-1.5b/grpo-seed{seed}"
        given = {"temperature": 0.6, "max_tokens": None, "best": BEST[:5]}
        plant_evaluation(tmp_path / place / "eval", "math500", mean, 500, place, **given)
    low, high = stats.t.interval(0.95, 2, 100 * sum(means) / 3, 100 * stats.sem(means))
    wanted = f"{100 * sum(means) / 3:.3g} [{low:.3g}, {high:.3g}] (75.2 ± 0.4, within)"
    assert table(tmp_path, "table1", "apmpo")[0]["GRPO", "math500 mean"] == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": 0.6}, "temperature 0.6 1.0"),
        ({"max_tokens": 1024}, "max_tokens 1024 8192"),
        ({"model": QWEN}, f"model {QWEN} etr/qwen3-8b/grpo"),
        ({"model": "etr/qwen3-8b/etr"}, "model etr/qwen3-8b/etr"),
        ({"problems": 2}, "problems 2 40"),
        ({"verifier": "dapo_math_verify"}, "verifier dapo_math_verify math"),
    ],
)
def test_another_evaluation_is_not_used(tmp_path, given, said):
    given = {"problems": 40, "model": "etr/qwen3-8b/grpo"} | given
    plant_evaluation(tmp_path / "etr/qwen3-8b/grpo/eval", "amc23", 0.7, **given)
    cells, lines = table(tmp_path, "table1")
    assert cells["GRPO", "amc23 mean"] == "– (0.713)"  # noqa: RUF001
    (line,) = (line for line in lines if "not used" in line)
    assert line == Says(said)


def test_a_number_of_training_is_the_mean_of_the_last_ten_steps(tmp_path):
    base = "Qwen/Qwen2.5-Math-1.5B"
    plant_run(tmp_path / "quatro/qwen2.5-math-1.5b/gspo", base, name="gspo")
    plant_run(tmp_path / "quatro/qwen2.5-math-1.5b/dapo", base, name="grpo")
    cells, lines = table(tmp_path, "table2", "quatro")
    assert cells["Entropy", "qwen2.5-math-1.5b/gspo entropy"] == "0.625 (0.05)"  # of steps 3 to 12
    assert cells["Entropy", "qwen2.5-math-1.5b/dapo entropy"] == "– (0.07)"  # noqa: RUF001
    assert any("dapo is not used" in line for line in lines)


def test_a_strangers_run_is_data_and_no_code(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\nMINE = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plant_run(
        tmp_path / "quatro/qwen2.5-math-1.5b/gspo", "Qwen/Qwen2.5-Math-1.5B", name="evil:MINE"
    )
    _, lines = table(tmp_path, "table2", "quatro")
    assert any("gspo is not used" in line and "evil:MINE" in line for line in lines)
    assert "evil" not in sys.modules


def test_curves_are_drawn_of_what_is_there(tmp_path):
    plant_run(tmp_path / "etr/qwen3-8b/etr", QWEN, name="etr")
    _, lines = table(tmp_path, "figure5")
    assert (tmp_path / "etr/figure5.png").stat().st_size > 1000
    assert f"Figure: {tmp_path}/etr/figure5.png\n" in lines
    assert [line for line in lines if "missing: no " in line and "qwen3-8b/grpo" in line]
    for step, mean in [(50, 0.25), (100, 0.5)]:
        place = tmp_path / f"etr/qwen3-8b/etr/eval-step-{step}"
        plant_evaluation(place, "aime24", mean, 30, "etr/qwen3-8b/etr")
    item = PAPERS["etr"].items["figure4"]
    folder = tmp_path / "etr/qwen3-8b/etr"
    found = papers.series(PAPERS["etr"], item, "qwen3-8b/etr", "aime24 mean", folder)
    assert found == ([50, 100], [0.25, 0.5])


def test_misprints_and_reports_are_named(tmp_path):
    _, lines = table(tmp_path, "table3", "quatro")
    assert sum(line.startswith("Misprint: ") for line in lines) == 2
    _, lines = table(tmp_path, "figureII", "quatro")
    assert any("nemo-algos report" in line and "qwen2.5-math-1.5b/gspo" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "ert"], "ert etr"),
        (["plan", "etr", "table7"], "table7"),
        (["plant", "etr"], "plant plan"),
        (["plan", "./nowhere.yaml"], "nowhere.yaml"),
        (["commands", "etr", "--model", "qwen3-8=x"], "--model qwen3-8 qwen3-8b"),
        (["commands", "etr", "--model", "qwen3-8b"], "--model qwen3-8b qwen3-8b=HUB_OR_FOLDER"),
        (["table", "etr", "table1", "--runs", "nowhere"], "--runs nowhere etr/"),
    ],
)
def test_wrong_words_are_one_sentence(words, said):
    ended = done(*words)
    assert ended.exit_code == 2 and ended.stdout == ""
    assert ended.stderr.splitlines() == [Says(said)]

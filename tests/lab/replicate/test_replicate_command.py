"""`nemo-algos replicate`: its lists and plans, the scripts of --submit, wrong inputs."""

import pytest
from lab.replicate.folders import run

from nemo_algos.lab.replicate import manifest as manifests
from nemo_algos.lab.replicate.plan import Costs, place, seeded_overrides, total, trained_runs
from tests.commands import invoke


def said(*words, status=0):
    done = invoke("replicate", *words)
    assert done.exit_code == status, done.output
    return done.output


def test_it_lists_every_item_of_every_paper():
    text = said()
    for name in manifests.names():
        assert all(item in text for item in manifests.paper(name).items)


def test_a_plan_names_runs_data_and_commands():
    text = said("erpo", "figure5c", "--price", 2)
    assert "method.name=erpo" in text and "erpo-qwen2.5-7b-1n1g-lora" in text
    assert "5,586 rows" in text and "698" in text  # updates of one epoch: 5,586 / 8
    assert "--report" in text


def test_a_plan_has_the_data_and_the_length_of_its_own_models():
    text = said("quatro", "table4")
    assert "585" in text and "878" not in text  # 30 epochs of APPS's 5,000 rows by 256
    assert "data APPS" in text and "data MATH train" not in text
    assert "data MATH train" in said("quatro", "table1")


def test_recipes_are_told_apart_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = said("quatro", "figure1", "--price", 3)
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    names = "".join("\n" * bool(row[2].strip()) + row[1].strip() for row in rows).split()
    stem = "quatro-qwen2.5-math-1.5b-1n2g-fsdp"
    assert names == [stem, f"{stem}-lr1e-5", f"{stem}-stale8", f"{stem}-stale20"]


def test_what_differs_is_said_for_both_sides():
    text = said("quatro", "figure4a")
    assert "differs: delta of Figures 4 a, b (the paper: not stated; here: 0.01)" in text


def test_only_what_differs_in_an_item_is_said():
    """Of QUATRO's 11 differences 4 are of all items; figure 4a has later passes, table 2 DAPO."""
    counts = {"figure2": 4, "table2": 5, "figure4a": 6}
    assert {i: said("quatro", i).count("differs: ") for i in counts} == counts


def test_dynamic_sampling_costs_what_it_samples():
    known = manifests.paper("quatro")
    costs = Costs(known, None)
    grpo, dapo = (costs.of(f"qwen2.5-math-1.5b/{m}") for m in ("grpo", "dapo"))
    assert (grpo.steps, dapo.steps) == (30 * 7500 // 256, 30 * 7500 // (3 * 256))
    assert dapo.hours / dapo.steps > grpo.hours / grpo.steps
    assert costs.of("qwen2.5-math-1.5b/gmpo") is grpo
    text = said("quatro", "table1")
    assert "batch_multiplier=3" in text.replace("\n", "") and "878" in text and "292" in text


def test_a_plan_evaluates_bases_and_checkpoints():
    text = said("etr", "table1")
    assert "vllm serve Qwen/Qwen3-8B-Base" in text and "convert_dcp_to_hf.py" in text
    assert "eval eval/etr_ood.yaml" in text and "sampling.max_tokens=3584" in text


def test_an_adapter_is_served_by_hand_over_its_model():
    lines = said("erpo", "table1").splitlines()
    (serve,) = (line for line in lines if "erpo/qwen2.5-7b/erpo=" in line)
    assert serve.startswith("$ vllm serve Qwen/Qwen2.5-7B --enable-lora")
    assert serve.endswith("/erpo/qwen2.5-7b/erpo/checkpoints/step_N/policy/weights/model")
    assert any("model.name=erpo/qwen2.5-7b/erpo " in line for line in lines)
    assert sum("convert_dcp_to_hf.py" in line for line in lines) == 3  # SFT trains all weights


def test_a_plan_shows_one_seed_and_how_the_others_differ():
    text = said("apmpo", "table8")
    assert "grpo.seed=1" in text and "grpo-seed2" not in text and "seeds 2 to 3" in text
    assert "seeds 2" not in said("etr", "table1")


def test_a_plan_says_what_is_otherwise_in_an_item():
    (note,) = (line for line in said("etr", "figure4").splitlines() if line.startswith("note:"))
    assert "every checkpoint" in note and "validation" in note


def test_what_trains_nothing_says_so():
    assert "a drawing" in said("etr", "figure1")
    assert "as it is" in said("erpo", "figure1b")


def test_geometry_is_trained_on_images_and_evaluated_on_them():
    text = said("apmpo", "table5")
    assert "data Geometry3K: 2,101 rows" in text and "data BIRD-Train" in text
    lines = [line for line in text.splitlines() if "qwen2.5-vl-3b/apmpo-seed1" in line]
    assert "recipes/apmpo-qwen2.5-vl-3b-instruct-1n4g-fsdp.yaml" in lines[0]
    assert "benchmarks.geometry3k" in lines[-1]
    assert [" Qwen/Qwen2.5-VL-3B-Instruct /" in line for line in lines].count(True) == 1


def test_a_run_of_nemo_rls_own_program_is_a_line_of_the_plan():
    text = said("erpo", "table1")
    lines = [line for line in text.splitlines() if "run_sft.py" in line]
    assert len(lines) == 3 and "policy.model_name=Qwen/Qwen2.5-7B " in lines[2]
    assert "sft.max_num_epochs=3" in lines[0] and "erpo/qwen2.5-1.5b/sft/checkpoints" in lines[0]
    known = manifests.paper("erpo")
    assert not [run for run in trained_runs(known, known.items["table1"]) if run.endswith("sft")]


def test_costs_are_those_of_plan():
    known = manifests.paper("apmpo")
    cost = Costs(known, 2.0).of("qwen2.5-math-1.5b/apmpo")
    assert (cost.gpus, cost.steps, cost.stated) == (4, 400, True)
    assert cost.gpu_hours == pytest.approx(4 * cost.hours)
    assert cost.price == pytest.approx(2 * cost.gpu_hours)
    assert cost.disk == pytest.approx(4 * 14 * 1.54e9, rel=0.01)  # three kept, one being written
    hours, disk = total(known, Costs(known, None), known.items["figure1a"])
    assert f"total: {hours:,.0f} GPU-hours; {disk / 1e9:,.0f} GB" in said("apmpo", "figure1a")
    assert "; checkpoints of adapters; " in said("erpo", "table1")


def test_seeds_have_folders_of_their_own_and_models_do_not():
    known = manifests.paper("apmpo")
    assert place(known, "apmpo", "qwen2.5-3b/grpo", 2).as_posix() == "apmpo/qwen2.5-3b/grpo-seed2"
    assert place(known, "apmpo", "qwen2.5-3b/base", 1).as_posix() == "apmpo/qwen2.5-3b/base"
    assert seeded_overrides(known, "qwen2.5-3b/grpo", 2) == ["method.name=grpo", "grpo.seed=2"]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["etrr"], "etr"),
        (["etr", "tabel1"], "table1"),
        (["etr", "--report", "/nowhere"], "/nowhere"),
        (["etr", "table1", "--toy", "--submit"], "--toy"),
        (["--submit"], "table1"),
        (["--toy", "etr", "figure1"], "toy"),
    ],
)
def test_wrong_words_are_one_sentence(words, near):
    text = said(*words, status=2)
    assert near in text and len(text.strip().splitlines()) == 1


def test_a_report_of_all_items_lists_what_is_there(tmp_path):
    run(tmp_path / "etr/qwen3-8b/etr", "Qwen/Qwen3-8B-Base", name="etr")
    text = said("etr", "figure5", "--report", tmp_path, "--out", tmp_path / "made")
    assert "figure5" in text and (tmp_path / "made/report/etr/index.html").exists()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A checkout of NeMo-RL as far as it is looked at."""
    root = tmp_path / "nemo-rl"
    (root / "nemo_rl").mkdir(parents=True)
    version = "MAJOR = 0\nMINOR = 7\nPATCH = 0\n"
    (root / "nemo_rl" / "package_info.py").write_text(version)
    (root / "ray.sub").write_text("#!/bin/bash\n")
    monkeypatch.chdir(tmp_path)
    return ["--account", "a", "--image", "i", "--checkout", root, "--out", tmp_path / "runs"]


def test_submit_without_slurm_writes_runs_and_evaluations_that_wait(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    text = said("quatro", "figureV", "--submit", *cluster)
    lines = [line for line in text.splitlines() if "sbatch" in line and "=$(" not in line]
    folder = tmp_path / "runs/quatro/qwen2.5-math-1.5b/gspo"
    assert f"job0=$(sbatch --parsable {folder}/job.sh)" in text
    assert f"sbatch --dependency=afterok:$job0 {folder}/evaluate.sh" in lines
    script = (folder / "evaluate.sh").read_text()
    assert "SERVED=quatro/qwen2.5-math-1.5b/gspo" in script
    assert f"CHECKPOINTS={folder}/checkpoints" in script
    assert f"out={folder}/eval-hot" in script and f"out={folder}/eval" in script
    assert "method:\n  name: gspo" in (folder / "config.yaml").read_text()


def test_submit_lets_each_evaluation_wait_for_its_run(tmp_path, cluster, monkeypatch):
    log, answer = tmp_path / "asked", 'n=$(wc -l < "$0.n"); echo >> "$0.n"; echo "job $((n + 70))"'
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sbatch"
    program.write_text(f'#!/bin/bash\necho "$@" >> {log}\n{answer}\n')
    program.chmod(0o755)
    (tmp_path / "bin" / "sbatch.n").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    said("etr", "table1", "--submit", *cluster)
    asked = [line for line in log.read_text().splitlines() if "--test-only" not in line]
    runs, waiting = asked[:9], asked[9:]
    assert all(line.endswith("/job.sh") for line in runs) and len(waiting) == 12
    after = {line.split()[-1]: line.split()[0] for line in waiting}
    folder = f"{tmp_path}/runs/etr"
    assert after[f"{folder}/qwen3-8b/grpo/evaluate.sh"] == "--dependency=afterok:70"
    assert after[f"{folder}/qwen2.5-math-7b/etr/evaluate.sh"] == "--dependency=afterok:78"
    assert after[f"{folder}/qwen3-8b/base/evaluate.sh"].endswith("evaluate.sh")  # waits for nothing


def test_a_model_is_served_on_as_many_gpus_as_it_needs(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    text = said("erpo", "table1", "--submit", *cluster)
    folder = tmp_path / "runs/erpo"
    parallel = {
        model: (folder / model / "base/evaluate.sh").read_text().split("TENSOR_PARALLEL=")[1][0]
        for model in ("qwen2.5-7b", "qwen3-235b")
    }
    assert parallel == {"qwen2.5-7b": "1", "qwen3-235b": "8"}
    assert not (folder / "deepseek-r1").exists()
    assert "deepseek-r1/base is not submitted" in text and "16 GPUs" in text
    served = "--tensor-parallel-size 8"
    assert f"vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507 {served}" in said("erpo", "table1")


def test_seeds_are_served_under_names_of_their_own(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    said("apmpo", "table8", "--submit", *cluster)
    script = tmp_path / "runs/apmpo/qwen2.5-3b/linear-seed2/evaluate.sh"
    assert "SERVED=apmpo/qwen2.5-3b/linear-seed2" in script.read_text()


def test_what_reads_images_goes_with_a_checkpoint_of_theirs(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    said("apmpo", "figure3", "--submit", *cluster)
    folder = tmp_path / "runs/apmpo"
    scripts = [
        folder / f"{m}/gmpo-seed1/evaluate.sh" for m in ("qwen2.5-vl-3b", "qwen2.5-coder-3b")
    ]
    assert ["AutoProcessor" in script.read_text() for script in scripts] == [True, False]


def test_submit_refuses_what_slurm_would(tmp_path, cluster):
    text = said("quatro", "figureV", "--submit", *cluster[2:], status=2)
    assert "--account" in text

"""`train --methods --seeds`: which runs are made, where, and what is refused before the first."""

import json
from dataclasses import replace

import pytest
from commands import invoke
from says import Says

from nemo_algos.algorithms.methods import METHODS
from nemo_algos.engines.local import manifest
from nemo_algos.engines.local import run as running


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """What would be trained and reported, as it comes; a seed of 13 fails."""
    monkeypatch.chdir(tmp_path)
    done = []

    def run(config, algorithm, folder, console):
        done.append((str(folder), algorithm.name, config.grpo.seed))
        folder.mkdir(parents=True, exist_ok=True)
        manifest.write(folder, config, algorithm.name)
        (folder / "metrics.jsonl").write_text("")
        if config.grpo.seed == 13:
            raise FloatingPointError("the loss is NaN")

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr(
        "nemo_algos.lab.report.page.write",
        lambda folders, out: done.append(([str(f) for f in folders], str(out))) or folders[0],
    )
    return done


def compare(*words):
    done = invoke("train", *words)
    return done.exit_code, done.output.splitlines()


def test_a_run_for_each_method_and_seed_then_the_report(trained):
    """etr with the config's own parameters; a second time the same folders, and one seed more."""
    words = ("etr.yaml", "method.micro=0.05", "grpo.seed=7", "--methods", "grpo,etr")
    status, _ = compare(*words, "--seeds", 2)
    place = "runs/compare/etr"
    folders = [f"{place}/{name}" for name in ("grpo-7", "grpo-8", "etr-7", "etr-8")]
    runs = [(folder, folder[17:-2], int(folder[-1])) for folder in folders]
    assert status == 0 and trained == [*runs, (folders, f"{place}/report")]
    with open(f"{place}/etr-8/manifest.json") as file:
        config = json.load(file)["config"]
    assert config["method"]["micro"] == 0.05 and config["grpo"]["seed"] == 8
    trained.clear()
    assert compare(*words, "--seeds", 3)[0] == 0
    assert [run[2] for run in trained[:-1]] == [7, 8, 9] * 2
    assert compare("dapo.yaml", "logger.log_dir=here", "--methods", "grpo,dapo")[0] == 0
    assert [run[:2] for run in trained[-3:-1]] == [
        ("here/grpo-42", "grpo"),
        ("here/dapo-42", "grpo"),
    ]


def test_a_run_that_fails_is_left_out_and_the_others_are_trained(trained):
    status, lines = compare("etr.yaml", "grpo.seed=12", "--seeds", 3)
    assert status == 1 and len(trained) == 4
    assert trained[-1][0] == ["runs/compare/etr/etr-12", "runs/compare/etr/etr-14"]
    assert any(line == Says("runs/compare/etr/etr-13 NaN") for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("etr.yaml --methods grp,ert", ["--methods: 'grp' grpo", "--methods: 'ert' etr"]),
        ("etr.yaml --methods grpo,", ["--methods: ''"]),
        ("etr.yaml --seeds 0", ["--seeds 1"]),
        ("etr.yaml --seeds five", ["--seeds number"]),
        ("etr.yaml method.micro=7 --methods grpo,etr", ["micro=7.0 clip_base"]),
        ("nemo_rl.yaml --seeds 2", ["engine: slurm nemo_rl.yaml --sweep"]),
        ("etr.yaml --seeds 2 --resume here", ["--resume"]),
        ("--seeds 2", ["etr.yaml"]),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(trained, words, said):
    assert compare(*words.split()) == (2, [Says(line) for line in said]) and trained == []


def test_folders_of_another_config_are_refused_before_the_first_run(trained):
    assert compare("etr.yaml", "--methods", "etr")[0] == 0
    trained.clear()
    status, lines = compare("etr.yaml", "grpo.num_prompts_per_step=16", "--methods", "grpo,etr")
    assert status == 2 and trained == [] and lines[0] == Says("runs/compare/etr/etr-42")
    assert compare("etr.yaml", "grpo.max_num_steps=200", "--methods", "grpo,etr")[0] == 0


OWN = replace(METHODS["etr"], name="own")


def test_a_method_of_ones_own_keeps_its_parameters(trained):
    own = f"{__name__}:OWN"
    words = (f"method.name={own}", "method.micro=0.05", "--methods", f"grpo,{own}")
    assert compare("etr.yaml", *words)[0] == 0
    with open(f"{trained[1][0]}/manifest.json") as file:
        assert json.load(file)["config"]["method"]["micro"] == 0.05

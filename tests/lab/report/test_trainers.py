"""TRL's and verl's runs in the report: files that their trainers wrote, under our names."""

import re
import shutil
from pathlib import Path

import folders
import pytest
from says import Says

from nemo_algos.lab.report.page import write
from nemo_algos.lab.report.runs import read_run, read_runs

HERE = Path(__file__).parent
ETR, GRPO, PLAIN = (HERE / "trl" / name for name in ("etr", "grpo", "plain"))


@pytest.fixture
def no_figures(monkeypatch):
    folders.draw_nothing(monkeypatch)


def test_runs_of_trl_are_compared_by_method(tmp_path, no_figures):
    etr, grpo = read_runs([ETR, GRPO])
    assert (etr.label, grpo.label) == ("etr", "grpo")
    assert etr.metrics["reward/mean"][0] == [10, 20, 30, 40]
    assert etr.metrics["reward/mean"][1][-1] == pytest.approx(0.5328125)
    assert etr.config["method"] == {"name": "etr", "micro": 0.05}
    html = write([ETR, GRPO], tmp_path / "out").read_text()
    drawn = re.findall(r'<figure id="training_(.*?)">', html)
    assert {"reward", "entropy", "clip", "kl_old", "etr_radius_positive"} <= {*drawn}
    assert (
        "micro=0.05" in html
        and "learning_rate" not in html.split('id="config"')[1].split("details")[0]
    )


def test_trls_own_trainer_has_our_names():
    run = read_run(PLAIN)
    assert run.metrics["kl/ref"] == ([1, 2], [0.0, pytest.approx(0.0041446, rel=1e-4)])
    assert run.metrics["entropy/updated"][1] == pytest.approx([0.2816179, 0.2703947])
    assert run.metrics["clip/fraction"] == ([1, 2], [0.0, 0.0234375])
    assert run.metrics["validation/accuracy"] == ([1, 2], [0.4296875, 0.484375])
    assert run.metrics["length/mean"] == ([1], [11.9921875])
    assert read_run(PLAIN / "checkpoint-1").metrics["reward/mean"] == ([1], [0.3984375])


def test_the_last_checkpoint_counts_by_its_number(tmp_path):
    shutil.copytree(PLAIN / "checkpoint-2", tmp_path / "checkpoint-10")
    shutil.copytree(PLAIN / "checkpoint-1", tmp_path / "checkpoint-9")
    (tmp_path / "checkpoint-best").mkdir()
    shutil.copy(PLAIN / "checkpoint-1" / "trainer_state.json", tmp_path / "checkpoint-best")
    assert read_run(tmp_path).metrics["kl/ref"][0] == [1, 2]


def test_what_our_adapter_adds_counts_before_verls_own():
    run = read_run(HERE / "verl")
    assert run.label == "" and run.metrics["reward/mean"][1][0] == 0.4375
    assert run.metrics["entropy/exact"][1][0] == pytest.approx(4.1488978)
    assert run.metrics["kl/ref"][1][0] == pytest.approx(0.003067965)
    assert run.metrics["length/mean"][1][0] == 5.75 and run.metrics["grad_norm"][0] == [1, 2]


STEPS = (
    {"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}},
    {
        "step": 1,
        "data": {
            "critic/score/mean": 0.5,
            "actor/entropy/exact": 1.25,
            "actor/entropy": 1.5,
            "actor/clip/fraction": 0.1,
        },
    },
    {"step": 2, "data": {"critic/score/mean": 0.75, "actor/pg_clipfrac": 0.2, "note": "a text"}},
)


def test_a_file_of_verls_logger_is_a_run(tmp_path):
    a, b = (tmp_path / "project" / f"{name}_1.jsonl" for name in ("etr", "grpo"))
    folders.write_lines(a, STEPS)
    alone = read_run(a.parent)
    assert alone.metrics["reward/mean"] == ([1, 2], [0.5, 0.75])
    assert alone.metrics["entropy/exact"] == ([1], [1.25])
    assert alone.metrics["clip/fraction"] == ([1, 2], [0.1, 0.2])
    assert "note" not in alone.metrics
    folders.write_lines(b, STEPS)
    assert [run.label for run in read_runs([a, b])] == ["etr_1", "grpo_1"]
    with pytest.raises(ValueError) as error:
        read_run(a.parent)
    assert str(error.value) == Says(f"contains runs etr_1.jsonl grpo_1.jsonl {a}")


def test_any_number_of_a_stranger_is_one(tmp_path):
    huge = '{"step": 1, "data": {"lr": %s, "kl_loss": NaN, "grad_norm": -Infinity}}\n' % ("9" * 400)
    (tmp_path / "a.jsonl").write_text(huge)
    metrics = read_run(tmp_path).metrics
    assert metrics["lr"][1] == [float("inf")] and metrics["grad_norm"][1] == [float("-inf")]
    assert str(metrics["kl/ref"][1]) == "[nan]"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("trainer_state.json", "{}", "trainer_state.json log_history"),
        (
            "trainer_state.json",
            '{"log_history": [{"loss": 1}]}',
            "trainer_state.json log_history.0.step",
        ),
        ("trainer_state.json", '{"log_history": []}', "logged step Train"),
        ("a.jsonl", '{"step": 1, "data": {}}\n{"step": "x", "data": {}}\n', "a.jsonl line 2 step"),
        ("a.jsonl", '{"step": 1, "data": {}}\n', "does not contain a step"),
    ],
)
def test_files_that_are_no_log_are_said(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        read_run(tmp_path)
    assert str(error.value) == Says(said)


def test_several_runs_of_trl_in_a_folder_are_named():
    with pytest.raises(ValueError) as error:
        read_run(HERE / "trl")
    assert str(error.value) == Says("contains runs etr, grpo, plain Name them")

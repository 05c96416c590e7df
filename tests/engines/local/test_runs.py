"""A run day by day: evaluations on the way, its best checkpoint, an end before the last step.

And to go on with more steps, another learning rate, in the same folder.
"""

import json
import os
import signal
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch
import trainers
from rich.console import Console
from says import Says
from short_runs import assert_same_run, metrics, short_warm_start, train, weights  # noqa: F401

from nemo_algos import config
from nemo_algos.engines.local import checkpoint, logs, manifest
from nemo_algos.engines.local import run as running
from nemo_algos.engines.local.logs import TrackedRun, open_folder
from nemo_algos.engines.local.run import Record, _say
from nemo_algos.engines.local.schema import LoggerSection, Project
from nemo_algos.findings import ConfigError, set_at
from nemo_algos.jsonl import lock_folder
from nemo_algos.preflight.check.local.judge import judge, parse

ACCURACY = {0: 0.1, 3: 0.5, 6: 0.3, 9: 0.2, 12: 0.4, 15: 0.9}
EVERY_3 = ["grpo.val_period=3", "checkpointing.metric_name=val:accuracy"]


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations that give ACCURACY; their steps as they come."""
    steps = []

    def evaluate(self):
        steps.append(self.trainer.step_number)
        self._write({"validation/accuracy": ACCURACY[steps[-1]]})

    monkeypatch.setattr(running.TrainingRun, "_evaluate", evaluate)
    return steps


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def changes(folder):
    lines = json.loads((folder / "manifest.json").read_text()).get("changes", [])
    return [(line["step"], line["changed"]) for line in lines]


# ---- evaluations


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["grpo.val_period=5"], [0, 5, 10, 12]),
        ([], [0, 12]),
        (["grpo.val_at_start=false", "grpo.val_at_end=false", "grpo.val_period=6"], [6]),
        (["grpo.val_samples_per_prompt=0", "grpo.val_period=5"], []),
    ],
)
def test_when_it_is_evaluated(tmp_path, settings, steps):
    said = train(tmp_path / "run", *settings)
    rows = [row for row in metrics(tmp_path / "run") if "validation/pass@4" in row]
    assert [row["step"] for row in rows] == steps
    assert [f"step {step}/12  held out: accuracy" in said for step in steps] == [True] * len(steps)
    found, held_out = summary(tmp_path / "run"), {row["step"]: row for row in rows}
    for name, step in (("before", 0), ("after", 12)):
        assert found[name] == {
            key.removeprefix("validation/"): value
            for key, value in held_out.get(step, {}).items()
            if key != "step"
        }


def test_evaluations_are_in_tensorboard_and_in_the_curves(tmp_path, monkeypatch, scripted):
    from nemo_algos.lab.report.runs import read_events

    train(tmp_path / "run", *EVERY_3, "logger.tensorboard_enabled=true")
    found = read_events(tmp_path / "run")["validation/accuracy"]
    assert found == ([0, 3, 6, 9, 12], pytest.approx([0.1, 0.5, 0.3, 0.2, 0.4]))
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda f, _: figures.append(f))
    logs.plot(tmp_path / "run", "title")
    line = figures[0].axes[0].lines[1]
    assert line.get_label() == "validation/accuracy"
    assert line.get_xydata().tolist() == [[s, ACCURACY[s]] for s in (0, 3, 6, 9, 12)]


def test_what_a_kill_has_left_in_tensorboard_is_hidden(tmp_path, monkeypatch):
    """Its files are read in the order of their names: second, process, then a count as text."""
    from tensorboard.summary.writer import event_file_writer

    from nemo_algos.lab.report.runs import read_events

    counter = type(event_file_writer._global_uid)(0)
    monkeypatch.setattr(event_file_writer, "_global_uid", counter)  # a process of its own: no 9, 10
    for done, steps in ((0, (1, 2, 3, 4)), (2, (3,))):
        with logs.tensorboard(
            TrackedRun(tmp_path, {}, "id", done), LoggerSection(log_dir="-")
        ) as send:
            for step in steps:
                send({"x": float(step + done)}, step)
    assert read_events(tmp_path)["x"] == ([1, 2, 3], [1, 2, 5])


@pytest.mark.parametrize("uri", [None, "http://here"])
def test_mlflow_tells_the_server_that_is_named_and_no_other(tmp_path, monkeypatch, uri):
    told, metrics = [], []
    fake = {"set_tracking_uri": told.append, "set_experiment": told.append}
    fake |= {"search_runs": lambda **_: [], "start_run": lambda **_: nullcontext()}
    fake |= {"log_dict": lambda *_: None, "log_metrics": lambda *sent: metrics.append(sent)}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**fake))
    settings = LoggerSection.model_validate({"log_dir": "-", "mlflow": {"tracking_uri": uri}})
    with logs.mlflow(TrackedRun(tmp_path, {}, "id", 0), settings) as send:
        send({"pass@1": 0.5}, 3)
    assert told == [*filter(None, [uri]), "nemo-algos"] and metrics == [({"pass_at_1": 0.5}, 3)]


def test_an_evaluation_that_a_signal_ends_loses_no_step(tmp_path, monkeypatch):
    evaluate = running.TrainingRun._evaluate

    def signalled(self):
        if self.trainer.step_number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        evaluate(self)

    given = tmp_path / "run", "grpo.val_period=5", "checkpointing.save_period=100"
    with monkeypatch.context() as patch:
        patch.setattr(running.TrainingRun, "_evaluate", signalled)
        with pytest.raises(SystemExit, match="143"):
            train(*given)
    assert list(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [5]
    said = train(*given)
    assert "resumed at step 5" in said and "step 5/12  held out" in said
    train(tmp_path / "whole", *given[1:])
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# ---- the best checkpoint


@pytest.mark.parametrize(("higher", "best"), [("true", 3), ("false", 9)])
def test_the_best_is_kept_and_saved_as_a_model(tmp_path, scripted, higher, best):
    folder = tmp_path / "run"
    more = ["checkpointing.keep_top_k=1", f"checkpointing.higher_is_better={higher}"]
    said = train(folder, *EVERY_3, *more, "checkpointing.save_period=2")
    assert sorted(checkpoint.steps(folder / "checkpoints")) == [best, 12]
    assert summary(folder)["best"] == {"step": best, "validation/accuracy": ACCURACY[best]}
    assert f"best model   {folder}/best_model  (step {best})" in said
    from safetensors.torch import load_file

    saved = load_file(folder / "best_model" / "model.safetensors")
    kept = checkpoint.load(folder / "checkpoints" / f"step_{best:06d}.pt")["model"]
    last = load_file(folder / "model" / "model.safetensors")
    of = "model.embed_tokens.weight"
    assert torch.equal(saved[of], kept["embed.weight"]) and not torch.equal(saved[of], last[of])


def test_all_are_kept_where_that_is_asked_for(tmp_path, scripted):
    train(tmp_path / "run", "checkpointing.keep_top_k=null", "checkpointing.save_period=4")
    assert sorted(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [4, 8, 12]
    assert "best" not in summary(tmp_path / "run")


def test_of_equal_values_the_later_is_the_better(tmp_path):
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, {"step": step}, None)
    assert checkpoint.ranking(tmp_path, {1: 0.5, 2: 0.7, 3: 0.7}) == [3, 2, 1, 4]


def test_a_metric_of_training(tmp_path, scripted):
    train(tmp_path / "run", "checkpointing.metric_name=train:entropy/exact")
    saved = {2, 4, 6, 8, 10, 12}
    rows = [row for row in metrics(tmp_path / "run") if "entropy/exact" in row]
    entropy = {row["step"]: row["entropy/exact"] for row in rows if row["step"] in saved}
    assert summary(tmp_path / "run")["best"]["step"] == max(entropy, key=entropy.__getitem__)


def test_what_is_no_number_is_not_the_best(tmp_path):
    named = ["checkpointing.metric_name=train:reward/mean"]
    record = Record(tmp_path, parse(config.load(config.SHIPPED / "etr.yaml", named))[0])
    for step, value in enumerate((0.25, float("nan"), 0.5)):
        record.add({"step": step, "reward/mean": value})
    assert record.values() == {0: 0.25, 2: 0.5}


def test_accuracy_is_said_where_it_is_not_pass_at_1(capsys):
    for accuracy, known in ((0.5, False), (0.25, True)):
        _say(Console(), "-", {"before": {"accuracy": accuracy, "pass@1": 0.5}})
        assert ("accuracy" in capsys.readouterr().out) == known


def test_a_metric_that_training_has_not(tmp_path):
    said = r"metric_name: .*reward/maen .*reward/mean"
    with pytest.raises(ValueError, match=said):
        train(tmp_path / "run", "checkpointing.metric_name=train:reward/maen")
    assert not (tmp_path / "run").exists()


METRIC, STOP = "checkpointing.metric_name", "grpo.stop_at_validation_metric"
KNOWN = "accuracy pass@1 pass@4 distinct"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([f"{METRIC}=accuracy"], f"{METRIC}: 'accuracy' val:NAME train:NAME"),
        ([f"{METRIC}=val:x"], f"{METRIC}: x {KNOWN}"),
        ([f"{METRIC}=val:accuracy"], f"{METRIC}: accuracy grpo.val_period"),
        ([*EVERY_3, "checkpointing.enabled=false"], f"{METRIC}: checkpointing.enabled"),
        ([f"{STOP}=accuracy"], f"{STOP}: threshold"),
        (
            [f"{STOP}=pass@64", "grpo.stop_at_validation_threshold=1", "grpo.val_period=1"],
            f"{STOP}: pass@64 pass@4",
        ),
        (
            [
                "policy.scheduler=[{name: torch.optim.lr_scheduler.OneCycleLR, "
                "kwargs: {max_lr: 0.1, total_steps: 9}}]"
            ],
            "policy.scheduler: total_steps=9 grpo.max_num_steps=12",
        ),
    ],
)
def test_what_no_evaluation_could_answer(settings, said):
    small = ["grpo.max_num_steps=12", "grpo.val_samples_per_prompt=4"]
    with pytest.raises(ConfigError) as error:
        parse(config.load(config.SHIPPED / "etr.yaml", [*small, *settings]))
    assert str(error.value).splitlines() == [Says(said)]


# ---- an early end


def test_a_threshold_ends_it_and_a_higher_one_goes_on(tmp_path, scripted):
    folder, stop = tmp_path / "run", "grpo.stop_at_validation_threshold"
    asked = [*EVERY_3, "grpo.stop_at_validation_metric=accuracy"]
    said = train(folder, *asked, f"{stop}=0.5")
    assert "(etr): 3 steps in " in said and "ended early, accuracy 0.5 >= 0.5\n" in said
    assert (summary(folder)["steps"], summary(folder)["after"]) == (3, {"accuracy": 0.5})
    said = train(folder, *asked, f"{stop}=0.5")
    assert said == Says(f"{folder} 3 12 accuracy 0.5 {stop}") and scripted == [0, 3]
    train(folder, *asked, f"{stop}=0.6")
    assert summary(folder)["steps"] == 12 and scripted == [0, 3, 6, 9, 12]
    assert changes(folder) == [(3, [f"{stop}: 0.5 -> 0.6"])]


# ---- to go on


def test_a_finished_run_says_so_and_does_nothing(whole, monkeypatch):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "lock"}
    monkeypatch.setattr(running, "build_trainer", None)
    assert train(whole) == Says(f"{whole} 12 grpo.max_num_steps")
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "lock"} == before


def test_one_that_was_killed_in_its_last_evaluation_finishes(tmp_path, whole, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr("nemo_algos.engines.local.run.plot", lambda *_: {}["killed"])
        train(tmp_path / "run")
    train(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert summary(tmp_path / "run")["after"] == summary(whole)["after"]


def test_more_steps_are_those_of_a_longer_run(tmp_path, whole):
    folder = tmp_path / "run"
    train(folder, "grpo.max_num_steps=6", "grpo.val_at_end=false")
    said = train(folder)
    line = "grpo.max_num_steps: 6 -> 12"
    assert f"from step 6 on: {line}\n" in said and "resumed at step 6" in said
    assert changes(folder) == [(6, [line, "grpo.val_at_end: False -> True"])]
    assert_same_run(folder, whole)
    assert manifest.read(folder / "manifest.json")["grpo"]["max_num_steps"] == 12


def test_another_learning_rate_counts_as_if_it_had_always_been(tmp_path, whole):
    """Its warm-up is over after 5 steps: also in the middle of one."""
    folder, rate = tmp_path / "run", "policy.optimizer.kwargs.lr"
    train(folder, "grpo.max_num_steps=2")
    train(folder, f"{rate}=4e-4", "grpo.max_num_steps=8")
    train(folder, "policy.optimizer.kwargs={lr: 1e-4, weight_decay: 0.5}")
    lr = {row["step"]: row["lr"] for row in metrics(folder) if "lr" in row}
    usual = {row["step"]: row["lr"] for row in metrics(whole) if "lr" in row}
    times = {step: lr[step] / usual[step] for step in lr}
    assert times == pytest.approx({s: 1 if s <= 2 else 2 if s <= 8 else 0.5 for s in lr})
    assert [step for step, _ in changes(folder)] == [2, 8]
    state = checkpoint.load(folder / "checkpoints" / "step_000012.pt")
    assert state["optimizer"]["param_groups"][0]["weight_decay"] == 0.5
    assert int(state["optimizer"]["state"][0]["step"]) == 24  # the moments went on


def test_a_change_that_a_kill_came_after_still_counts(tmp_path, monkeypatch):
    """The manifest has it before the first checkpoint of it."""
    folder, lr = tmp_path / "run", "policy.optimizer.kwargs.lr=1e-3"
    train(folder, "grpo.max_num_steps=6")
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr("nemo_algos.engines.local.trainer.Trainer.step", lambda _: {}["killed"])
        train(folder, lr)
    train(folder, lr)
    rows = {row["step"]: row["lr"] for row in metrics(folder) if "lr" in row}
    assert [rows[6], rows[7]] == pytest.approx([2e-4, 1e-3])
    assert len(changes(folder)) == 1


def test_a_schedule_made_for_the_old_length_is_told(tmp_path):
    def cosine(length):
        name = "torch.optim.lr_scheduler.CosineAnnealingLR"
        return f"policy.scheduler=[{{name: {name}, kwargs: {{T_max: {length}}}}}]"

    folder, note = tmp_path / "run", "`policy.scheduler`"
    train(folder, cosine(2), "grpo.max_num_steps=2")
    assert note in train(folder, cosine(2), "grpo.max_num_steps=3")
    assert note not in train(folder, cosine(6), "grpo.max_num_steps=4")
    rates = [row["lr"] for row in metrics(folder) if "lr" in row]
    half = 1e-4
    assert rates == pytest.approx([2 * half, half, 0, half], abs=1e-9)


def test_another_number_of_a_schedule_is_no_length(tmp_path):
    """A step of 2 that lowers the rate goes on doing so after step 2."""
    halved = (
        "policy.scheduler=[{name: torch.optim.lr_scheduler.StepLR, "
        "kwargs: {step_size: 2, gamma: 0.5}}]"
    )
    train(tmp_path / "run", halved, "grpo.max_num_steps=2")
    assert "`policy.scheduler`" not in train(tmp_path / "run", halved, "grpo.max_num_steps=3")


def test_on_another_kind_of_device_other_responses_are_drawn():
    """Whose random state has another size."""
    one, other = trainers.trainer(), trainers.trainer()
    one.step()
    other.load({**one.state(), "generator": torch.zeros(16, dtype=torch.uint8)})
    assert other.generator.initial_seed() == one.config.grpo.seed + 1


MAY_CHANGE = """
checkpointing.enabled checkpointing.higher_is_better checkpointing.keep_top_k
checkpointing.metric_name checkpointing.save_period
data.verifier_workers
grpo.max_num_steps grpo.max_val_samples grpo.stop_at_validation_metric
grpo.stop_at_validation_threshold grpo.val_at_end grpo.val_at_start grpo.val_period
grpo.val_samples_per_prompt
mismatch.dump mismatch.probe mismatch.stop_above mismatch.threshold
policy.device policy.dtensor_cfg.activation_checkpointing policy.dynamic_batching.enabled
policy.dynamic_batching.train_mb_tokens policy.generation_batch_size policy.max_grad_norm
policy.optimizer.kwargs.betas policy.optimizer.kwargs.lr policy.optimizer.kwargs.weight_decay
policy.scheduler policy.threads policy.train_micro_batch_size
"""


def leaves(section, path=""):
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_key_may_change_or_is_refused_with_a_reason(tmp_path):
    checked, _ = parse(config.load(config.SHIPPED / "etr.yaml"))
    manifest.write(tmp_path, checked, "etr")
    written = (tmp_path / "manifest.json").read_text()
    may, reasons = set(), set()
    for key in leaves(checked.model_dump(mode="json")):
        (tmp_path / "manifest.json").write_text(written)
        other = checked.model_dump(mode="json")
        set_at(other, key, "other")
        try:
            given = SimpleNamespace(model_dump=lambda mode: other)  # noqa: B023
            (change,) = manifest.record_changes(tmp_path, given, 3)
            assert (change.key, change.new) == (key, "other")
            line = str(change)
            may.add(key)
        except ValueError as error:
            (line,) = str(error).splitlines()[1:]
            reasons.add(line.rpartition(" (")[2])
        assert line.strip().startswith(f"{key}: ") and " -> other" in line
    assert {key for key in may if not key.startswith("logger.")} == {*MAY_CHANGE.split()}
    assert {key for key in may if key.startswith("logger.")} == {
        f"logger.{key}" for key in leaves(checked.logger.model_dump())
    }
    assert reasons == {f"{reason})" for reason in (*manifest.REASONS, manifest.OTHER_STEPS)}


# ---- the folder


def test_a_folder_that_was_there_stays_and_a_new_one_without_a_step_goes(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    for name in ("mine", "new"):
        with pytest.raises(KeyError), open_folder(tmp_path / name, tmp_path) as folder:
            assert folder.is_dir()
            raise KeyError
    assert (tmp_path / "mine" / "notes").exists() and not (tmp_path / "new").exists()


def test_a_folder_whose_links_lead_out_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "checkpoints").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="link"), open_folder(tmp_path / "mine", tmp_path):
        pass


def test_a_folder_is_of_one_process(tmp_path):
    (tmp_path / "run").mkdir()
    with lock_folder(tmp_path / "run", "training in"), pytest.raises(ValueError) as error:
        train(tmp_path / "run")
    assert str(error.value) == Says(f"{tmp_path / 'run'}")


def number(log_dir):
    with open_folder(None, log_dir) as folder:
        (folder / "metrics.jsonl").touch()
    return folder.name


def test_the_number_of_a_run_that_was_killed_before_a_step_is_free_again(tmp_path):
    assert number(tmp_path) == "exp_001"
    dead = tmp_path / "exp_002"
    dead.mkdir()
    for name in ("lock", "manifest.json"):
        (dead / name).touch()
    assert number(tmp_path) == "exp_002"
    (tmp_path / "exp_007").mkdir()  # someone's own, without a lock
    assert number(tmp_path) == "exp_008"
    with open_folder(None, tmp_path) as first, open_folder(None, tmp_path) as second:
        assert (first.name, second.name) == ("exp_009", "exp_010")
    assert not first.exists() and not second.exists()  # without a step


def test_what_a_run_says_first(tmp_path):
    said = train(tmp_path / "run", "grpo.max_num_steps=1", "logger.num_val_samples_to_print=1")
    lines = said.splitlines()
    model = "countdown-tiny, 113,856 parameters, on cpu (1 thread), float32"
    facts = f"{model}; countdown, 2 held out"
    assert lines[:3] == [
        "loading countdown-tiny",
        f"{tmp_path / 'run'}: {facts}",
        "evaluating at step 0",
    ]
    assert lines[3].startswith("reward ") and lines[6].startswith("step 0/1  held out: accuracy ")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed(name, monkeypatch):
    monkeypatch.setattr("nemo_algos.preflight.check.local.resources.find_spec", lambda _: None)
    with pytest.raises(ConfigError) as error:
        judge(config.load(config.SHIPPED / "etr.yaml", [f"logger.{name}_enabled=true"]))
    said = Says(f"logger.{name}_enabled: {name} pip --extra")
    assert said in str(error.value).splitlines()


def test_a_new_run_of_a_name_is_another_one_to_trackio(monkeypatch, tmp_path):
    """Its library resumes by name: only a resumed run may have an earlier one's."""
    asked = []

    class Trackio(ModuleType):
        def init(self, **options):
            asked.append(options)
            return SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "trackio", Trackio("trackio"))
    settings = LoggerSection(log_dir="runs", trackio=Project(project="p", name="etr"))
    for run_id, done in (("exp_001-a", 0), ("exp_002-b", 0), ("exp_001-a", 3)):
        with logs.TRACKERS["trackio"](TrackedRun(tmp_path, {}, run_id, done), settings):
            pass
    names = [options["name"] for options in asked]
    assert names == ["etr exp_001-a", "etr exp_002-b", "etr exp_001-a"]
    assert {options["project"] for options in asked} == {"p"}

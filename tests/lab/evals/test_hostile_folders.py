"""A folder of a run or an evaluation may come from anyone.

Whatever it holds, no command runs it, reads or writes beside it, waits for ever, or ends in a
traceback.
"""

import json
import os
import pickle
import shutil
from pathlib import Path

import folders
import pytest
import torch
from commands import invoke
from completions import completion, server
from rich.console import Console
from strangers import KINDS, Bomb

from nemo_algos import config
from nemo_algos.engines.local import checkpoint, tiny_policy
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.preflight.check.local.judge import parse

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"


@pytest.fixture
def marker(tmp_path):
    """What code of a folder would make."""
    return tmp_path / "marker"


@pytest.fixture(scope="module", autouse=True)
def cheap(tmp_path_factory):
    """Nothing is drawn, little taught, few puzzles made: what takes most of the commands' time."""
    with pytest.MonkeyPatch.context() as patch:
        folders.draw_nothing(patch)
        patch.setattr("nemo_algos.engines.local.run.plot", lambda folder, _: folder / "curves.png")
        patch.setattr("nemo_algos.lab.evals.benchmarks.PUZZLES", 2)
        patch.setattr(tiny_policy, "WARM_STEPS", 1)
        patch.setenv("NEMO_ALGOS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cheap):
    """A training run with a checkpoint, and its evaluation."""
    folder = folders.training(tmp_path_factory.mktemp("trained") / "run", steps=2)
    shutil.copy(folder / "manifest.json", folder.parent)  # with the keys that a report reads
    small = ["max_num_steps=1", "max_val_samples=1", "val_samples_per_prompt=1"]
    plain = config.load(CONFIGS / "grpo.yaml", [f"grpo.{key}" for key in small])
    plain["logger"]["tensorboard_enabled"] = False
    checked, _ = parse(plain)
    folders.change_json(folder / "manifest.json", config=checked.model_dump(mode="json"))
    trainer = build_trainer(*parse(plain), Console(quiet=True))
    trainer.step_number = 1
    checkpoint.save(folder / "checkpoints", trainer.state(), keep_top_k=2)
    folders.evaluation(folder / "eval" / "math500", problems=2, samples=2)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def report(run):
    done = invoke("report", run, "--out", run.parent / "out")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def evaluate(run):
    given = ["eval/countdown.yaml", f"model.run={run}", f"out={run.parent / 'evaluated'}"]
    given += ["sampling.samples=1", "benchmarks.countdown.problems=1", "metrics.resamples=10"]
    done = invoke("eval", *given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def resume(run):
    (run / "summary.json").unlink(missing_ok=True)  # else there is nothing left to do
    done = invoke("train", "--resume", run)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


COMMANDS = {"report": report, "eval": evaluate, "resume": resume}


@pytest.fixture(params=COMMANDS)
def command(request, run):
    """A command on the run's folder; its exit status and what it says."""
    return request.param, lambda: COMMANDS[request.param](run)


def test_a_pickle_is_never_loaded(command, run, marker):
    name, go = command
    path = checkpoint.latest(run / "checkpoints")
    state = checkpoint.load(path)
    for bomb in (Bomb(marker), {**state, "scheduler": Bomb(marker)}):
        torch.save(bomb, path)
        code, said = go()
        assert not marker.exists()
        assert code == (0 if name == "report" else 2)
        assert name == "report" or "cannot be loaded" in said
    path.write_bytes(pickle.dumps(Bomb(marker)))
    assert go()[0] in (0, 2) and not marker.exists()


LINKED = {
    "report": ["metrics.jsonl", "eval/math500/verdicts.jsonl", "eval/math500/metrics.json", "eval"],
    "eval": ["manifest.json", "checkpoints/step_000001.pt", "checkpoints"],
    "resume": ["metrics.jsonl", "summary.tmp", "checkpoints/step_000002.tmp", "model"],
}


def test_a_link_out_of_the_folder_is_refused(command, run, tmp_path):
    """Also to a file that is not there yet: it would be made."""
    name, go = command
    for place in LINKED[name]:
        path, other = run / place, tmp_path / "other"
        kept = tmp_path / "kept"
        if path.exists():
            path.rename(kept)
            other.write_bytes(kept.read_bytes() if kept.is_file() else b"mine")
        before = other.read_bytes() if other.exists() else None
        path.symlink_to(other)
        code, said = go()
        assert (code, "link" in said) == (2, True), (place, said)
        assert (other.read_bytes() if other.exists() else None) == before
        path.unlink()
        if kept.exists():
            kept.rename(path)
    assert go()[0] == 0


def test_a_pipe_is_not_waited_for(command, run):
    name, go = command
    place = {"report": "trace.jsonl", "eval": "checkpoints/step_000002.pt", "resume": "a/b"}[name]
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).unlink(missing_ok=True)
    os.mkfifo(run / place)
    code, said = go()
    assert code == 2 and f"{place} " in said
    (run / place).unlink()
    (run / place).symlink_to(run / place)  # in a circle
    assert go()[0] == 2


READ = {
    "report": [
        "metrics.jsonl",
        "manifest.json",
        "trace.jsonl",
        "summary.json",
        "eval/math500/metrics.json",
        "eval/math500/manifest.json",
        "eval/math500/problems.jsonl",
        "eval/math500/generations.jsonl",
        "eval/math500/verdicts.jsonl",
    ],
    "eval": ["manifest.json", "checkpoints/step_000001.pt"],
    "resume": ["manifest.json", "metrics.jsonl", "trace.jsonl", "checkpoints/step_000001.pt"],
}


# which files are read, and as what; all kinds of broken ones: test_strangers_files.py
@pytest.mark.parametrize("kind", ["empty", "a cut object", "an object of other keys"])
def test_a_broken_file_is_named(command, run, kind):
    name, go = command
    text = KINDS[kind]
    for place in READ[name]:
        path = run / place
        kept, lines = path.read_bytes(), place.endswith(".jsonl")
        path.write_bytes(text.rstrip() + b"\n" if lines and text else text)
        code, said = go()
        harmless = (not text and lines) or (text.startswith(b'{"a') and name == "report")
        assert code == 2 or harmless, (place, said)
        named = f"{path} line 1" if lines and text else path.name
        assert code == 0 or named in said or "no step yet" in said, (place, said)
        path.write_bytes(kept)


@pytest.mark.parametrize(
    "answers", ["nemo_algos.engines.local.checkpoint:load", "os:system", "x", 3, None]
)
def test_a_report_extracts_answers_by_a_benchmarks_function_only(run, answers, marker):
    folder = run / "eval" / "math500"
    torch.save(Bomb(marker), folder / "pickle")
    rows = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
    for response in (str(folder / "pickle"), f"mkdir {marker}", r"\boxed{5}"):
        folders.write_lines(
            folder / "generations.jsonl", [{**row, "response": response} for row in rows]
        )
        folders.change_json(folder / "manifest.json", answers=answers)
        code, _ = report(run)
        assert code == (0 if isinstance(answers, str) else 2) and not marker.exists()
    folders.change_json(
        folder / "manifest.json", answers="nemo_algos.engines.rewards.answers:boxed"
    )
    assert report(run)[0] == 0
    assert '"answer":"5"' in (run.parent / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    "benchmark", ["../../evil", "/tmp/evil", "a/b", "..", "", "a" * 300, "a\0b", "é", "a\n", 3, []]
)
def test_a_report_writes_nothing_outside_its_folder(run, benchmark):
    before = sorted(run.parent.rglob("*"))
    folders.change_json(run / "eval" / "math500" / "metrics.json", benchmark=benchmark)
    code, said = report(run)
    assert code == 2 and "metrics.json: benchmark: " in said if benchmark else code == 0
    outside = [p for p in run.parent.rglob("*") if run.parent / "out" not in (p, *p.parents)]
    assert sorted(outside) == before


def mutations(value, path=()):
    """The places in a JSON value; of a list, and of objects that are alike, the first."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    alike = isinstance(value, list) or (path and all(isinstance(v, dict) for v in value.values()))
    for key, inner in items[:1] if alike else items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from mutations(inner, (*path, key))


def changed(value, path, new):
    if not path:
        return new
    key, *rest = path
    copy = value.copy()
    copy[key] = changed(value[key], rest, new)
    return copy


WRONG = (-1.5, float("nan"))
OTHERS = pytest.param((None, "x", [], 10**400), marks=pytest.mark.long)


@pytest.mark.parametrize("wrong", [WRONG, OTHERS], ids=["some", "others"])
@pytest.mark.parametrize("place", [p for p in READ["report"] if p != "eval/math500/problems.jsonl"])
def test_no_value_of_a_file_leads_to_a_traceback(trained, run, place, wrong):
    """Every key of every file with values that it should not have: a page, or a sentence."""
    shutil.copy(trained.parent / "manifest.json", run)
    path = run / place
    text = path.read_text()
    first, _, rest = text.partition("\n") if place.endswith("l") else (text, "", "")
    value, ends = json.loads(first), set()
    for where in mutations(value):
        for new in wrong:
            path.write_text(f"{json.dumps(changed(value, where, new))}\n{rest}")
            code, said = report(run)
            ends.add(code)
            assert code == 0 or path.name in said, (where, new, said)
    assert 2 in ends


# what is asked about: tests/engines/local/test_strangers_config.py
@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"data__verifier": "os:system"}, "data.verifier"),
        ({"data__verifier": "nemo_algos.engines.execution.code:import_module"}, "data.verifier"),
        ({"method": {"name": "grpo", "bounds": {"name": "os:x"}}}, "method.bounds.name"),
        ({"policy__scheduler": [{"name": "torch.hub.load"}]}, "policy.scheduler.0.name"),
        ({"logger__mlflow__tracking_uri": "http://x"}, "logger.mlflow.tracking_uri"),
    ],
)
def test_code_or_a_server_that_a_runs_config_names_has_to_be_named_again(run, keys, code):
    written = {f"config__{key}": value for key, value in keys.items()}
    folders.change_json(run / "manifest.json", **written)
    status, said = resume(run)
    assert status == 2 and f"{code}: " in said
    assert "folder" in said
    assert evaluate(run)[0] in (0, 2)


def test_a_value_of_a_checkpoint_leads_to_no_traceback(run):
    path = checkpoint.latest(run / "checkpoints")
    state = checkpoint.load(path)
    wrong = [{k: v for k, v in state.items() if k != key} for key in state]
    wrong += [{**state, key: value} for key in state for value in ("x", torch.ones(3))]
    for changed_state in wrong:
        torch.save(changed_state, path)
        code, said = resume(run)
        assert code == 2 or "resumed at step" in said
    for model in ("x", {}, {"embed.weight": torch.ones(3)}):
        torch.save({**state, "model": model}, path)
        assert "cannot be loaded" in evaluate(run)[1]
    torch.save([1], path)
    assert "state" in resume(run)[1]


def test_an_endpoints_folder_cannot_be_a_link(tmp_path):
    """The lock, the manifest and the lines of an evaluation are written: not through a link."""
    (tmp_path / "sums.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    out = tmp_path / "out" / "math"
    out.mkdir(parents=True)
    for name in ("lock", "manifest.tmp", "generations.jsonl", "metrics.tmp"):
        (out / name).symlink_to(tmp_path / "other")
        with server(lambda body: (200, completion("2"))) as (url, seen):
            given = [f"model.url={url}", "model.name=m", f"out={tmp_path / 'out'}"]
            given += [f"benchmarks={{math: {{data: {tmp_path}/sums.jsonl}}}}"]
            done = invoke("eval", "eval/endpoint.yaml", *given)
        assert done.exit_code == 2 and "link" in done.output
        assert not seen and not (tmp_path / "other").exists()
        (out / name).unlink()

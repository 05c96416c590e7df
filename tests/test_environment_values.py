"""What ${oc.env:NAME} holds goes where it is used: never to a terminal, and never into a folder."""

import json

import pytest
from completions import completion, server
from typer.testing import CliRunner

from nemo_algos import config
from nemo_algos.cli import app
from nemo_algos.secrets import as_written

SECRET = "sk-ENV-SECRET-123456"
KINDS = {  # of secrets, for what prints texts in a notation of its own
    "a line": "sk-SECRET-1234567890",
    "lines": "-----BEGIN KEY-----\nSECRETSECRET1234\n-----END KEY-----",
    "a quote": "sk-'SECRET'-1234567890",
    "both quotes": "sk-'SECRET\"-1234567890",
    "a backslash": "sk-\\SECRET\\-1234567890",
    "a letter that is not printed": "sk-\x07SECRET-1234567890",
    "a letter of another alphabet": "sk-SECRET-ключ-1234567890",
}
GIVEN = "${oc.env:MINE}"
SMALL = ("grpo.max_num_steps=1", "grpo.val_at_start=false", "grpo.val_at_end=false")
WRONG = {
    "grpo.seed": GIVEN,
    "policy.device": GIVEN,
    "policy.model_name": f"/{GIVEN}",
    "method.name": GIVEN,
    "method.micro": GIVEN,
    "data.task": f"{GIVEN}:x",
    "data.verifier": f"x:{GIVEN}",
    "data.train.data_path": f"{GIVEN}.jsonl",
    "policy.optimizer.name": GIVEN,
    "policy.optimizer.kwargs.lr": f"a {GIVEN} b",
    "logger.log_dir": f"/proc/{GIVEN}",
    "engine": GIVEN,
    "nothing": GIVEN,
}


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("MINE", SECRET)


def said(*words):
    done = CliRunner().invoke(app, list(words))
    assert not isinstance(done.exception, Exception), done.exception
    return done.exit_code, done.stdout + done.stderr


@pytest.mark.parametrize("key", WRONG)
def test_no_error_shows_it(key):
    for command in ("train", "check"):
        status, text = said(command, "etr.yaml", f"{key}={WRONG[key]}")
        assert status in (1, 2) and SECRET not in text
        assert key.split(".")[0] in text


@pytest.mark.parametrize("given", [GIVEN, f"x {GIVEN} y"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_error_shows_a_secret_of_any_kind(kind, given, monkeypatch):
    monkeypatch.setenv("MINE", KINDS[kind])
    for words in (
        ["check", "etr.yaml"],
        ["check", "etr.yaml", "--json"],
        ["check", "nemo_rl.yaml"],
    ):
        status, text = said(*words, f"grpo.seed='{given}'")
        assert status == 1 and "SECRET" not in text and "seed" in text, words
    value = config.resolve(config.OmegaConf.create({"a": given}))["a"]
    assert KINDS[kind] in value
    for shown in (value, repr(value), json.dumps(value), str({"a": value})):
        assert "SECRET" not in as_written(shown)


@pytest.mark.parametrize("key", ["logger.wandb_enabled", "grpo.seed", "nothing"])
def test_no_error_of_a_nemo_rl_config_shows_it(key):
    """A key that the shipped NeMo-RL does not have is a warning."""
    status, text = said("check", "nemo_rl.yaml", f"+{key}={GIVEN}")
    assert status == (key != "nothing") and SECRET not in text and key in text


def test_a_run_folder_has_it_as_written(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f'defaults: etr.yaml\nlogger: {{log_dir: {tmp_path}/runs, wandb: {{name: "{GIVEN}"}}}}\n'
    )
    status, text = said("train", str(tmp_path / "mine.yaml"), *SMALL)
    assert status == 0 and SECRET not in text
    (run,) = (tmp_path / "runs").iterdir()
    files = [path for path in run.rglob("*") if path.is_file()]
    assert [p.name for p in files if SECRET.encode() in p.read_bytes()] == []
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["config"]["logger"]["wandb"]["name"] == GIVEN
    # a stranger's folder may not ask for what the environment holds; its own config may
    assert said("train", "--resume", str(run))[0] == 2
    status, text = said("train", str(tmp_path / "mine.yaml"), "--resume", str(run), *SMALL)
    assert status == 0 and "already at step 1" in text


def test_an_evaluation_folder_has_it_as_written(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"problem": "1?", "answer": "1"}\n')
    with server(lambda body: (200, completion(r"\boxed{1}"))) as (url, seen):
        status, text = said(
            "eval",
            "eval/own.yaml",
            f"model={{engine: endpoint, url: '{url}', name: m, extra: {{tag: '{GIVEN}'}}}}",
            f"benchmarks.math.data={tmp_path / 'rows.jsonl'}",
            "sampling.samples=1",
            f"out={tmp_path / 'out'}",
        )
    assert status == 0, text
    assert SECRET not in text and {body["tag"] for _, _, body in seen} == {SECRET}
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and not any(SECRET.encode() in path.read_bytes() for path in files)


def test_as_written(monkeypatch):
    monkeypatch.setenv("SHORT", "cuda")
    merged = config.OmegaConf.create(
        {"a": GIVEN, "b": f"x/{GIVEN}/y", "c": "${a}", "d": ["${oc.env:SHORT}", 3, None]}
    )
    plain = config.resolve(merged)
    assert plain == {"a": SECRET, "b": f"x/{SECRET}/y", "c": SECRET, "d": ["cuda", 3, None]}
    written = {"a": GIVEN, "b": f"x/{GIVEN}/y", "c": GIVEN, "d": ["cuda", 3, None]}
    assert as_written(plain) == written

"""The key of a server goes to that server, and nowhere else."""

import base64
import html
import json
from urllib.parse import quote

import pytest
from commands import invoke
from completions import completion, server

from nemo_algos.lab.evals.api_key import HIDDEN, ApiKey

KEY = "sk-A1/b2+c3&d4'e5\"f6=g7"


def key(monkeypatch, text=KEY):
    monkeypatch.setenv("OPENAI_API_KEY", text)
    return ApiKey("OPENAI_API_KEY")


@pytest.mark.parametrize(
    "echoed",
    [
        KEY,
        f"Bearer {KEY}",
        repr(f"Bearer {KEY}"),
        json.dumps({"Authorization": f"Bearer {KEY}"}),
        quote(KEY, safe=""),
        html.escape(KEY),
        KEY.upper(),
        KEY[:9] + "..." + KEY[-9:],
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        base64.b64encode(KEY.encode()).decode(),
        KEY.encode().hex(),
        f"{KEY}{KEY}",
    ],
)
def test_no_part_of_it_is_shown(monkeypatch, echoed):
    shown = key(monkeypatch).shown(f"status 400: you sent {echoed}, which is wrong")
    parts = [KEY[i : i + 8].lower() for i in range(len(KEY) - 7)]
    coded = base64.b64encode(KEY.encode()).decode()[:12]
    assert HIDDEN in shown and coded not in shown and KEY.encode().hex()[:12] not in shown
    assert not [part for part in parts if part in shown.lower()]
    assert shown.startswith("status 400: you sent ") and shown.endswith(", which is wrong")


def test_without_a_key_nothing_is_hidden(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    nothing = ApiKey("OPENAI_API_KEY")
    assert (nothing.headers, nothing.shown("a\n\x1b b"), nothing.without("a")) == ({}, "a b", "a")


def test_a_short_key_of_a_local_server_changes_no_response(monkeypatch):
    local = key(monkeypatch, "EMPTY")
    assert local.headers == {"Authorization": "Bearer EMPTY"}
    assert local.without("The set is EMPTY.") == "The set is EMPTY."
    assert local.shown("Bearer EMPTY") == f"Bearer {HIDDEN}"


@pytest.mark.parametrize("text", [" sk-1\n", "sk-1\r\n"])
def test_white_space_around_it_is_no_part_of_it(monkeypatch, text):
    assert key(monkeypatch, text).headers == {"Authorization": "Bearer sk-1"}


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """The command with a key, on one problem; every text that it prints or stores."""
    monkeypatch.setattr("nemo_algos.lab.evals.endpoint.FIRST_WAIT", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (tmp_path / "sums.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n' * 2)

    def run(*overrides):
        sums = f"{{data: {tmp_path}/sums.jsonl, verifier: 'completions:same_box'}}"
        given = ["model.name=m", f"benchmarks={{math: {sums}}}", "metrics.resamples=10"]
        given += ["model.retries=1", "sampling.samples=2", f"out={tmp_path}/out"]
        done = invoke("eval", "eval/endpoint.yaml", *given, *overrides)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        files = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
        return done.exit_code, done.output, "".join(p.read_text(errors="replace") for p in files)

    return run


def given_away(text):
    return [KEY[i : i + 8] for i in range(len(KEY) - 7) if KEY[i : i + 8] in text]


@pytest.mark.parametrize("status", [200, 307, 400, 401, 404, 422, 500])
def test_a_server_that_sends_the_header_back(evaluate, tmp_path, status):
    """As the reason of a refusal, in a header, in an answer that is none, in a response."""
    first = []

    def echoes(body):
        sent = seen[-1][1]
        first.append(sent)
        if status == 200 and len(first) > 3:
            return 200, {**completion(f"your header: {sent}", sent), "model": sent}
        return status, {"error": f"bad header {sent}"}, {"Location": f"http://x/{quote(sent)}"}

    with server(echoes) as (url, seen):
        code, said, stored = evaluate(f"model.url={url}")
    assert first[0] == f"Bearer {KEY}"
    assert (code == 0) == (status == 200)
    assert not given_away(said) and not given_away(stored)
    assert HIDDEN in said
    if code == 0:
        assert HIDDEN in stored
        out = invoke("report", tmp_path / "out", "--out", tmp_path / "report")
        assert out.exit_code == 0
        assert not given_away((tmp_path / "report" / "index.html").read_text())


@pytest.mark.parametrize(
    "text", ["sk-secret one", "sk-secret\none", "sk-secret\x00one", "sk-secrét"]
)
def test_a_key_that_no_header_holds_is_a_sentence_before_the_first_request(monkeypatch, text):
    if "\x00" in text:
        monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": text})
    else:
        monkeypatch.setenv("OPENAI_API_KEY", text)
    with pytest.raises(ValueError, match=r"OPENAI_API_KEY") as error:
        ApiKey("OPENAI_API_KEY")
    assert "secr" not in str(error.value)


@pytest.mark.parametrize(
    "override",
    [
        "model.url=http://localhost/v1?api_key=SECRET",
        "model.url=http://localhost/v1#SECRET",
        "model.url=http://user:SECRET@localhost/v1",
        "model.url=http://SECRET@localhost/v1",
        "model.api_key_env=sk-SECRET",
        "model.api_key_env=SECRET",
        "model.api_key=SECRET",
        "model.extra={api_key: SECRET}",
        "model.extra={extra_headers: {Authorization: SECRET}}",
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_not_repeated(evaluate, override):
    with server() as (url, seen):
        code, said, stored = evaluate(f"model.url={url}", override)
    assert (code, stored, seen) == (2, "", [])
    last = said.splitlines()[-1]  # behind a warning of the key that is given twice
    assert last.startswith(override.partition("=")[0].split("={")[0]) and "SECRET" not in said

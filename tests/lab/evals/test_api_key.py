"""The key of a server goes to that server, and nowhere else."""

from urllib.parse import quote

import folders
import pytest
from commands import invoke
from completions import completion, no_waits, server

from nemo_algos.lab.evals.endpoint import HIDDEN, Client

KEY = "sk-A1b2+c3/d4-e5f6_g7=="


def client(monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    return Client("http://localhost/v1", "OPENAI_API_KEY", seconds=1.0)


@pytest.mark.parametrize(
    ("key", "shown", "stored"),
    [
        (KEY, f"you sent {HIDDEN}, {HIDDEN}", f"you sent {HIDDEN}, {HIDDEN}"),
        ("EMPTY", f"you sent {HIDDEN}, {HIDDEN}", "you sent EMPTY, EMPTY"),
        ("", "you sent , ", "you sent , "),
    ],
)
def test_where_it_is_hidden(monkeypatch, key, shown, stored):
    """A short key of a local server is no secret, and may be a word of a response."""
    text = f"you sent {key}, {quote(key, safe='')}"
    keyed = client(monkeypatch, key)
    assert (keyed.shown(text), keyed.without_key(text)) == (shown.strip(), stored)
    assert keyed.shown(f"\x1b a\n {'x' * 290}{key} b")[:9] == "a " + "x" * 7


@pytest.mark.parametrize("key", [" sk-1\r\n", ""])
def test_white_space_around_it_is_no_part_of_it(evaluate, monkeypatch, key):
    """Without one, the library's other keys are not sent."""
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    with server(lambda body: (200, completion("2"))) as (url, seen):
        assert evaluate(f"model.url={url}")[0] == 0
    assert {sent for _, sent, _ in seen} == {"Bearer sk-1" if key else None}


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """The command with a key, on one problem; every text that it prints or stores."""
    no_waits(monkeypatch)
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


@pytest.mark.parametrize("status", [200, 307, 401, 422, 500])
def test_a_server_that_sends_the_header_back(evaluate, tmp_path, monkeypatch, status):
    """As the reason of a refusal, in a header, in an answer that is none, in a response."""
    first = []

    def echoes(body):
        sent = seen[-1][1]
        first.append(sent)
        if status == 200 and len(first) > 1:
            return 200, {**completion(f"your header: {sent}", sent), "model": sent}
        return status, {"error": f"bad header {sent}"}, {"Location": f"http://x/{quote(sent)}"}

    with server(echoes) as (url, seen):
        code, said, stored = evaluate(f"model.url={url}", "model.concurrency=1")
    assert first[0] == f"Bearer {KEY}" and (code == 0) == (status == 200)
    told = said + stored
    if code == 0:
        assert HIDDEN in stored
        folders.draw_nothing(monkeypatch)
        assert invoke("report", tmp_path / "out", "--out", tmp_path / "report").exit_code == 0
        told += (tmp_path / "report" / "index.html").read_text()
    assert KEY not in told and quote(KEY, safe="") not in told and HIDDEN in said


@pytest.mark.parametrize(
    "text", ["sk-secret one", "sk-secret\none", "sk-secret\x00one", "sk-secrét"]
)
def test_a_key_that_no_header_holds_is_a_sentence_before_the_first_request(monkeypatch, text):
    monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": text})
    with pytest.raises(ValueError, match=r"OPENAI_API_KEY") as error:
        Client("http://localhost/v1", "OPENAI_API_KEY", seconds=1.0)
    assert "secr" not in str(error.value)


@pytest.mark.parametrize(
    "override",
    [
        "model.url=http://localhost/v1?api_key=SECRET",
        "model.url=http://localhost/v1#SECRET",
        "model.url=http://user:SECRET@localhost/v1",
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

"""Endpoint, against servers that answer anything.

Nothing is lost, nothing counts twice, and none of it ends an evaluation that others could go on
with.
"""

import gzip
import json
import socketserver
import threading
import time
import tracemalloc
from contextlib import suppress
from email.utils import format_datetime
from http.client import parse_headers

import pytest
from completions import completion, server
from says import Says

from nemo_algos.lab.evals import client, endpoint
from nemo_algos.lab.evals.endpoint import Endpoint
from nemo_algos.lab.evals.problem import Problem
from nemo_algos.lab.evals.schema import EndpointModel, SamplingSection

PROBLEMS = [Problem(name, f"{name}?", "") for name in "abcdefghij"]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.0)


def sampled(url, problems=PROBLEMS[:1], said=None, **settings):
    settings = {"retries": 1, **settings}
    model = EndpointModel(engine="endpoint", url=url, name="m", **settings)
    found = []
    say = ([] if said is None else said).append
    Endpoint(model, SamplingSection(), say).sample([(p, [0]) for p in problems], found.extend)
    return found


def choice(message, **further):
    return {"choices": [{"message": message, "finish_reason": "stop", **further}]}


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (choice({"content": None}), "", "stop"),
        (choice({}), "", "stop"),
        (choice({"content": [{"type": "text", "text": "4"}, {"type": "x"}, "2"]}), "42", "stop"),
        (choice({"content": "4", "reasoning": {"no": "text"}}), "4", "stop"),
        (choice({"content": "4", "tool_calls": None}, finish_reason="tool_calls"), "4", ""),
        (choice({"content": "4"}, finish_reason="content_filter"), "4", ""),
        (choice({"content": "4"}, finish_reason=None), "4", ""),
        (choice({"content": "4"}, finish_reason=["stop"]), "4", ""),
        (choice({"content": "4"}, finish_reason="max_tokens"), "4", "length"),
        ({"choices": [{"message": {"content": "4"}}]}, "4", ""),
        (choice({"content": "\ud800"}), "\ud800", "stop"),
    ],
)
def test_what_is_a_response(reply, text, finish):
    with server(lambda body: (200, reply)) as (url, seen):
        (found,) = sampled(url)
    assert (found.response, found.finish, found.tokens, len(seen)) == (text, finish, -1, 1)


@pytest.mark.parametrize("choices", [[{"text": None}], [{"finish_reason": "length"}]])
def test_what_is_an_empty_completion(choices):
    with server(lambda body: (200, {"choices": choices})) as (url, _):
        (found,) = sampled(url, completions="{prompt}")
    assert (found.response, found.refused) == ("", False)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"completion_tokens": 7}, 7),
        *(({"completion_tokens": x}, -1) for x in (-5, 7.5, "7", True, None, [7], 10**30)),
        *((usage, -1) for usage in (None, [], "7", 7, {})),
    ],
)
def test_a_length_is_a_count_or_unknown(usage, tokens):
    with server(lambda body: (200, {**completion("4"), "usage": usage})) as (url, _):
        (found,) = sampled(url)
    assert found.tokens == tokens


def test_a_length_that_is_no_number():
    reply = b'{"choices": [{"message": {"content": "4"}}], "usage": {"completion_tokens": NaN}}'
    with server(lambda body: (200, reply)) as (url, _):
        assert [g.tokens for g in sampled(url)] == [-1]


def dripping():
    for _ in range(200):
        yield b" "
        time.sleep(0.05)


BROKEN_GZIP = gzip.compress(b"x" * 1000)[:-20] + b"no gzip at all......"
ODD = {
    "null": (None,),
    "error": ({"error": {"message": "out of cheese"}},),
    "no choices": ({"choices": []},),
    "choices null": ({"choices": None},),
    "a choice that is none": ({"choices": ["4"]},),
    "no message": ({"choices": [{"text": "4"}]},),
    "content a number": (choice({"content": 4}),),
    "a page": (b"<html>log in</html>",),
    "nothing": (b"",),
    "no UTF-8": (b'{"choices": [{"message": {"content": "\xff"}}]}',),
    "deep": (b"[" * 100_000,),
    "a number of 5000 digits": (b"1" * 5000,),
    "broken gzip": (BROKEN_GZIP, {"Content-Encoding": "gzip"}),
    "large": (b" " * 100_000,),
    "a bomb": (gzip.compress(b" " * 10_000_000), {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("name", [*ODD, "dripping"])
def test_an_odd_answer_is_refused_and_the_others_go_on(name, monkeypatch):
    """It is asked for again, as often as a failure is, and then left."""
    monkeypatch.setattr(client, "LARGEST", 50_000)
    asked = []

    def answers(body):
        asked.append(body["messages"][0]["content"])
        if asked[-1] != "b?":
            return 200, completion(asked[-1])
        return (200, dripping()) if name == "dripping" else (200, *ODD[name])

    seconds = {"timeout": 0.5} if name == "dripping" else {}
    with server(answers) as (url, _):
        found = sampled(url, PROBLEMS[:4], **seconds)
    assert sorted(asked) == ["a?", "b?", "b?", "c?", "d?"]
    assert {g.problem: g.response for g in found} == {"a": "a?", "b": "", "c": "c?", "d": "d?"}
    (refused,) = [g for g in found if g.refused]
    assert refused.problem == "b" and "\n" not in refused.finish and len(refused.finish) < 350


def hung_up():
    raise ConnectionAbortedError
    yield


# status, body, headers: of one request, for good, whatever the others get
FAILING = {
    **{str(status): (status, {"error": "x"}) for status in (408, 409, 425, 500, 502, 504)},
    "no answer in time": (200, dripping),
    "a connection that ends": (200, hung_up, {"Content-Length": "100"}),
}


def failing(name):
    """The answer of that name, made anew where it is made."""
    status, reply, *headers = FAILING[name]
    return status, reply() if callable(reply) else reply, *headers


@pytest.mark.parametrize("name", FAILING)
def test_a_request_that_fails_for_good_is_stored_as_refused(name):
    def answers(body):
        asked = body["messages"][0]["content"]
        return failing(name) if asked == "b?" else (200, completion(asked))

    seconds = {"timeout": 2.0} if name == "no answer in time" else {}
    with server(answers) as (url, seen):
        found = sampled(url, PROBLEMS[:4], concurrency=2, **seconds)
    assert {g.problem: g.response for g in found} == {"a": "a?", "b": "", "c": "c?", "d": "d?"}
    assert [g.problem for g in found if g.refused] == ["b"]
    assert len(seen) == 5


@pytest.mark.parametrize("name", FAILING)
def test_a_server_that_fails_at_all_is_given_up(name):
    said = pytest.raises(ValueError, match=r"8 problems: .*Run again")
    with server(lambda body: failing(name)) as (url, _), said:
        sampled(url, PROBLEMS, timeout=0.1, retries=0)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_busy_ends_it_at_once(status):
    said = pytest.raises(ValueError, match=f"status {status}.*Run again")
    with server(lambda body: (status, {})) as (url, seen), said:
        sampled(url, PROBLEMS, concurrency=1)
    assert len(seen) == 2


def test_a_bomb_is_not_unpacked():
    bomb = gzip.compress(bytes(2 * client.LARGEST))
    with server(lambda body: (200, bomb, {"Content-Encoding": "gzip"})) as (url, _):
        tracemalloc.start()
        (found,) = sampled(url, retries=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "64 MiB" in found.finish and found.refused
    assert peak < 1.9 * client.LARGEST


def test_a_server_that_only_answers_oddly_is_given_up():
    with server(lambda body: (200, b"<html>log in</html>")) as (url, _):
        said = pytest.raises(ValueError, match=r"8 problems: .*JSON: <html>")
        with said:
            sampled(url, PROBLEMS, concurrency=1)


@pytest.mark.parametrize("reply", [b"HTTP", {}])
def test_a_redirect_is_not_followed(reply):
    with server(lambda body: (307, reply, {"Location": "http://elsewhere/v1"})) as (url, seen):
        said = pytest.raises(ValueError, match=r"http://elsewhere/v1.*`model.url`")
        with said:
            sampled(url)
    assert len(seen) == 1


def test_the_wait_is_what_the_server_asks_for(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    asked = iter(["7", "0.5", "1e3", "-3", "soon", "100000", format_datetime_in(100_000)])
    replies = iter([429] * 7)

    def busy(body):
        status = next(replies, 200)
        return (200, completion("4")) if status == 200 else (429, {}, {"Retry-After": next(asked)})

    with server(busy) as (url, _):
        (found,) = sampled(url, retries=7)
    assert found.response == "4"
    assert waits == [7, 0.5, 0, 0, 0, 300, 300]


def format_datetime_in(seconds):
    from datetime import UTC, datetime, timedelta

    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def test_another_model_and_several_choices_are_said_once():
    def reply(body):
        text = completion(body["messages"][0]["content"])
        return 200, {"model": "\x1b[31mother", "choices": text["choices"] * 3}

    said = []
    with server(reply) as (url, _):
        found = sampled(url, PROBLEMS, said)
    assert sorted(g.response for g in found) == [f"{p.id}?" for p in PROBLEMS]
    assert sorted(said) == [
        Says("warning: [31mother m"),
        Says("warning: choices"),
    ]


@pytest.mark.parametrize(
    ("status", "text", "hint"),
    [
        (404, "The model `m` does not exist.", "model.name"),
        (404, {"error": {"code": "model_not_found"}}, "model.name"),
        (404, {"detail": "Not Found"}, "model.url"),
        (404, "no model more", "model.url"),
        (401, {}, "OPENAI_API_KEY"),
    ],
)
def test_the_hint_is_of_what_is_wrong(status, text, hint):
    with server(lambda body: (status, text)) as (url, _), pytest.raises(ValueError) as error:
        sampled(url)
    assert hint in str(error.value)


def test_a_prompt_that_is_no_unicode_is_sent():
    with server(lambda body: (200, completion(body["messages"][0]["content"]))) as (url, _):
        (found,) = sampled(url, [Problem("a", "\ud800", "")])
    assert found.response == "\ud800"


class Twice(socketserver.StreamRequestHandler):
    """Sends every answer twice, and keeps the connection."""

    def handle(self):
        while self.rfile.readline():
            headers = parse_headers(self.rfile)
            body = json.loads(self.rfile.read(int(headers["Content-Length"])))
            text = json.dumps(completion(body["messages"][0]["content"])).encode()
            start = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text)
            with suppress(OSError):
                self.request.sendall((start + text) * 2)


def test_an_answer_that_nobody_asked_for_is_no_answer():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Twice) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, args=[0.01]).start()
        url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        found = sampled(url, PROBLEMS, concurrency=1, timeout=20)
        http.shutdown()
    assert {g.problem: g.response for g in found} == {p.id: p.prompt for p in PROBLEMS}

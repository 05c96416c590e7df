"""Endpoint, against a server of our own that speaks the same protocol, or answers anything.

Nothing is lost, nothing counts twice, and none of it ends an evaluation that others could go on
with.
"""

import base64
import gzip
import json
import socketserver
import threading
import time
import tracemalloc
from contextlib import suppress
from http.client import parse_headers

import pytest
from completions import completion, no_waits, server
from says import Says

from nemo_algos.lab.evals import endpoint
from nemo_algos.lab.evals.endpoint import Endpoint
from nemo_algos.lab.evals.problem import Problem
from nemo_algos.lab.evals.schema import EndpointModel, SamplingSection

PROBLEMS = [Problem(name, f"{name}?", "") for name in "abcdefghij"]
MEGABYTES = 50_000_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    no_waits(monkeypatch)


def sampled(url, problems=PROBLEMS[:1], samples=1, sampling=None, say=print, **settings):
    model = EndpointModel(engine="endpoint", url=url, name="m", **{"retries": 1, **settings})
    found = []
    asked = Endpoint(model, sampling or SamplingSection(), say)
    asked.sample([(p, list(range(samples))) for p in problems], found.extend)
    return found


def choice(message, **further):
    return {"choices": [{"message": message, "finish_reason": "stop", **further}]}


def test_one_request_per_response_each_with_its_seed(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    settings = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 100}
    sampling = SamplingSection(**settings)
    with server() as (url, seen):
        keyed = {"api_key_env": "MY_KEY", "concurrency": 2}
        first = sampled(url, PROBLEMS[:2], 2, sampling, **keyed)
        again = sampled(url, PROBLEMS[:2], 2, sampling, concurrency=1)
    assert [(g.problem, g.sample) for g in again] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert sorted(first) == sorted(again) and len({g.response for g in first}) == 4
    path, key, body = seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body.items() >= {"model": "m", **settings}.items()


def named(settings):
    model = EndpointModel(engine="endpoint", name="m", **settings)
    return Endpoint(model, SamplingSection()).identity


ASKED = {"role": "user", "content": "a?"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("settings", "path", "sent"),
    [
        ({}, "chat/completions", {"messages": [ASKED]}),
        ({"extra": {"top_k": 20}}, "chat/completions", {"top_k": 20}),
        ({"system": "Be brief."}, "chat/completions", {"messages": [SYSTEM, ASKED]}),
        ({"completions": "Q: {prompt}\nA:"}, "completions", {"prompt": "Q: a?\nA:"}),
    ],
)
def test_what_is_sent(settings, path, sent, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = {"choices": [{"text": " 2", "finish_reason": "stop"}]}
    reply = text if "completions" in settings else completion(" 2")
    with server(lambda body: (200, reply)) as (url, seen):
        (found,) = sampled(url, **settings)
    ((at, key, body),) = seen
    assert (at, key, found.response, found.finish) == (f"/v1/{path}", None, " 2", "stop")
    assert body.items() >= sent.items() and not {"max_tokens", "logprobs"} & set(body)
    assert (named(settings) != named({})) == bool(settings)


def test_images_go_along(tmp_path):
    picture = tmp_path / "p.jpg"
    picture.write_bytes(b"jpeg")
    problem = Problem("a", "What is it?", "", (str(picture), "https://x.org/y.png"))
    with server(lambda body: (200, completion("a cat"))) as (url, seen):
        sampled(url, [problem])
        with pytest.raises(ValueError, match=r"image .*none\.png"):
            sampled(url, [Problem("a", "?", "", (str(tmp_path / "none.png"),))])
    *images, text = seen[0][2]["messages"][0]["content"]
    encoded = base64.b64encode(b"jpeg").decode()
    urls = [part["image_url"]["url"] for part in images]
    assert urls == [f"data:image/jpeg;base64,{encoded}", "https://x.org/y.png"]
    assert text == {"type": "text", "text": "What is it?"}


def test_a_prompt_that_is_no_unicode_is_sent():
    with server(lambda body: (200, completion(body["messages"][0]["content"]))) as (url, _):
        (found,) = sampled(url, [Problem("a", "\ud800", "")])
    assert found.response == "\ud800"


def counted(usage):
    return {**completion("4"), "usage": usage}


NAN = b'{"choices": [{"message": {"content": "4"}}], "usage": {"completion_tokens": NaN}}'
THOUGHT = "<think>\none and one\n</think>\n2"
RESPONSES = [  # reply, text, finish, tokens
    (completion("x", "length", 9), "x", "length", 9),
    (completion("", tokens=0), "", "stop", 0),
    (choice({"content": None}), "", "stop", -1),
    (choice({}), "", "stop", -1),
    (choice({"content": [{"type": "text", "text": "4"}, {"type": "x"}, "2"]}), "42", "stop", -1),
    (choice({"content": "2", "reasoning": "one and one"}), THOUGHT, "stop", -1),
    (choice({"content": "2", "reasoning_content": "one and one"}), THOUGHT, "stop", -1),
    (choice({"content": "4", "reasoning": {"no": "text"}}), "4", "stop", -1),
    (choice({"content": "4"}, finish_reason="tool_calls"), "4", "", -1),
    (choice({"content": "4"}, finish_reason="content_filter"), "4", "", -1),
    (choice({"content": "4"}, finish_reason=None), "4", "", -1),
    (choice({"content": "4"}, finish_reason=["stop"]), "4", "", -1),
    (choice({"content": "4"}, finish_reason="max_tokens"), "4", "length", -1),
    ({"choices": [{"message": {"content": "4"}}]}, "4", "", -1),
    (choice({"content": "\ud800"}), "\ud800", "stop", -1),
    *((counted({"completion_tokens": x}), "4", "stop", -1) for x in (-5, 7.5, "7", True, 10**30)),
    *((counted(usage), "4", "stop", -1) for usage in (None, [], "7", {})),
    (NAN, "4", "", -1),
]


@pytest.mark.parametrize(("reply", "text", "finish", "tokens"), RESPONSES)
def test_what_is_a_response(reply, text, finish, tokens):
    with server(lambda body: (200, reply)) as (url, seen):
        (found,) = sampled(url)
    assert (found.response, found.finish, found.tokens, len(seen)) == (text, finish, tokens, 1)


@pytest.mark.parametrize("choices", [[{"text": None}], [{"finish_reason": "length"}]])
def test_what_is_an_empty_completion(choices):
    with server(lambda body: (200, {"choices": choices})) as (url, _):
        (found,) = sampled(url, completions="{prompt}")
    assert (found.response, found.refused) == ("", False)


CHAT = {"message": {"content": "x"}, "logprobs": {"content": [{"logprob": -0.5}, {"logprob": 0}]}}
COMPLETED = {"text": "x", "logprobs": {"tokens": ["x", ""], "token_logprobs": [-0.5, 0]}}


@pytest.mark.parametrize(
    ("answer", "completions", "asked"), [(CHAT, "", True), (COMPLETED, "{prompt}", 0)]
)
def test_log_probs_where_asked_for(answer, completions, asked):
    sampling = SamplingSection(logprobs=True)
    with server(lambda body: (200, {"choices": [answer]})) as (url, seen):
        (with_them,) = sampled(url, sampling=sampling, completions=completions)
        (without,) = sampled(url, completions=completions)
    assert seen[0][2]["logprobs"] is asked
    assert (with_them.logprobs, without.logprobs) == ([-0.5, 0.0], None)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        [],
        {"content": None},
        *({"content": [{"logprob": x}]} for x in ("x", float("nan"), True, 10**400)),
        {"content": [None]},
        {"token_logprobs": [None]},
    ],
)
def test_log_probs_that_are_none_are_said(logprobs):
    said, sampling = [], SamplingSection(logprobs=True)
    reply = choice({"content": "x"}, logprobs=logprobs)
    with server(lambda body: (200, reply)) as (url, _):
        found = sampled(url, PROBLEMS[:2], sampling=sampling, say=said.append)
    assert {(g.response, g.logprobs) for g in found} == {("x", None)}
    assert said == [Says("warning: log-probs")]


def dripping():
    for _ in range(200):
        yield b" "
        time.sleep(0.05)


def hung_up():
    raise ConnectionAbortedError
    yield


GZIP = {"Content-Encoding": "gzip"}
# what a server says to one request of several, and for how many requests: status, content, headers
REFUSED = {
    **{f"status {status}": (1, status, {"error": "x"}) for status in (400, 413, 422, 425)},
    **{f"status {status}": (2, status, {"error": "x"}) for status in (408, 409, 500, 502, 504)},
    "nothing in time": (2, 200, dripping),
    "an end": (2, 200, hung_up, {"Content-Length": "100"}),
    "gzip that breaks": (2, 200, gzip.compress(b"x" * 1000)[:-20] + b"no gzip at all......", GZIP),
    "MiB": (2, 200, b" " * MEGABYTES),
    "more than": (2, 200, gzip.compress(b" " * MEGABYTES), GZIP),
    "not JSON: <html>": (1, 200, b"<html>log in</html>"),
    "not JSON": (1, 200, b""),
    "not JSON: {": (1, 200, b'{"choices": [{"message": {"content": "\xff"}}]}'),
    "not JSON: [": (1, 200, b"[" * 40_000),
    "not JSON: 1": (1, 200, b"1" * 5000),
    "not a completion: null": (1, 200, None),
    "out of cheese": (1, 200, {"error": {"message": "out of cheese"}}),
    "not a completion: []": (1, 200, []),
    'not a completion: {"choices": []}': (1, 200, {"choices": []}),
    'not a completion: {"choices": null}': (1, 200, {"choices": None}),
    'not a completion: {"choices": ["': (1, 200, {"choices": ["4"]}),
    'not a completion: {"choices": [{"t': (1, 200, {"choices": [{"text": "4"}]}),
    'not a completion: {"choices": [{"m': (1, 200, choice({"content": 4})),
}
WORDS = {"gzip that breaks": "gzip", "nothing in time": "`model.timeout`", "an end": "closed"}


def answered(name):
    """The answer of that name, made anew where it is made."""
    _, status, reply, *headers = REFUSED[name]
    return status, reply() if callable(reply) else reply, *headers


@pytest.mark.parametrize("name", REFUSED)
def test_what_gets_no_completion_is_refused_and_the_others_go_on(name, monkeypatch):
    monkeypatch.setattr(endpoint, "LARGEST", MEGABYTES // 1000)

    def answers(body):
        asked = body["messages"][0]["content"]
        return answered(name) if asked == "b?" else (200, completion(asked))

    seconds = {"timeout": 1.5} if name == "nothing in time" else {}
    with server(answers) as (url, seen):
        found = sampled(url, PROBLEMS[:4], concurrency=2, **seconds)
    assert {g.problem: g.response for g in found} == {"a": "a?", "b": "", "c": "c?", "d": "d?"}
    (refused,) = [g for g in found if g.refused]
    assert refused.problem == "b" and WORDS.get(name, name) in refused.finish
    assert "\n" not in refused.finish and len(refused.finish) < 350
    assert len(seen) == 3 + REFUSED[name][0]


@pytest.mark.parametrize("name", ["status 500", "nothing in time", "an end", "not JSON: <html>"])
def test_a_server_that_completes_nothing_is_given_up(name):
    said = pytest.raises(ValueError, match=r"8 problems: .*Run again")
    with server(lambda body: answered(name)) as (url, _), said:
        sampled(url, PROBLEMS, timeout=0.1, retries=0)


def test_a_bomb_is_not_unpacked():
    bomb = gzip.compress(bytes(2 * endpoint.LARGEST))
    with server(lambda body: (200, bomb, GZIP)) as (url, _):
        tracemalloc.start()
        (found,) = sampled(url, retries=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "64 MiB" in found.finish and peak < 1.9 * endpoint.LARGEST


@pytest.mark.parametrize(
    ("answer", "said", "requests"),
    [
        ((429, {}), "status 429.*Run again", 2),
        ((503, {}), "status 503.*Run again", 2),
        ((404, "The model `m` does not exist."), r"`model\.name`.*`model\.url`", 1),
        ((404, {"error": {"code": "model_not_found"}}), r"`model\.name`", 1),
        ((404, {"detail": "Not Found"}), r"404.*Not Found.*\(Check `model\.url`", 1),
        ((404, "no model more"), r"\(Check `model\.url`", 1),
        ((401, {}), "OPENAI_API_KEY", 1),
        ((307, b"HTTP", {"Location": "http://elsewhere/v1"}), r"//elsewhere/v1.*`model\.url`", 1),
    ],
)
def test_what_ends_an_evaluation_keeps_what_came_before(answer, said, requests):
    replies = iter([(200, completion("x"))])
    with server(lambda body: next(replies, answer)) as (url, seen):
        model = EndpointModel(engine="endpoint", url=url, name="m", concurrency=1, retries=1)
        found = []
        with pytest.raises(ValueError, match=said):
            Endpoint(model, SamplingSection()).sample([(p, [0]) for p in PROBLEMS], found.extend)
    assert ([g.response for g in found], len(seen)) == (["x"], 1 + requests)


def test_a_busy_server_is_asked_again():
    replies = iter([(503, {}), (429, {}), (200, completion("x"))])
    with server(lambda body: next(replies)) as (url, seen):
        (found,) = sampled(url, retries=5)
    assert (len(seen), found.response) == (3, "x")


def test_a_server_that_is_not_there_is_said():
    with server() as (url, _):
        pass
    with pytest.raises(ValueError, match=r"/v1/chat/completions: All connection .*Run again"):
        sampled(url)


def test_another_model_and_several_choices_are_said_once():
    def reply(body):
        text = completion(body["messages"][0]["content"])
        return 200, {"model": "\x1b[31mother", "choices": text["choices"] * 3}

    said = []
    with server(reply) as (url, _):
        found = sampled(url, PROBLEMS, say=said.append)
    assert sorted(g.response for g in found) == [p.prompt for p in PROBLEMS]
    assert sorted(said) == [Says("warning: [31mother m"), Says("warning: choices")]


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

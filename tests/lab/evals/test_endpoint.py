"""Endpoint, against a server of our own that speaks the same protocol."""

import base64

import pytest
from completions import completion, server
from says import Says

from nemo_algos.lab.evals.endpoint import Endpoint
from nemo_algos.lab.evals.problem import Problem
from nemo_algos.lab.evals.schema import EndpointModel, SamplingSection

PROBLEMS = [Problem("a", "1 + 1?", "2"), Problem("b", "1 + 2?", "3")]


def sampled(url, problems=PROBLEMS, samples=(0, 1), sampling=None, **settings):
    model = EndpointModel(engine="endpoint", url=url, name="m", **settings)
    endpoint = Endpoint(model, sampling or SamplingSection())
    found = []
    endpoint.sample([(p, list(samples)) for p in problems], found.extend)
    return {(g.problem, g.sample): g for g in found}


def test_one_request_per_response_each_with_its_seed(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    sampling = SamplingSection(temperature=0.6, top_p=0.95, max_tokens=100)
    with server() as (url, seen):
        first = sampled(url, sampling=sampling, api_key_env="MY_KEY", concurrency=2)
        again = sampled(url, sampling=sampling, concurrency=1)
    assert set(first) == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    assert first == again
    assert len({g.response for g in first.values()}) == 4
    path, key, body = seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    sent = {k: body[k] for k in ("model", "temperature", "top_p", "max_tokens")}
    assert sent == {"model": "m", "temperature": 0.6, "top_p": 0.95, "max_tokens": 100}


def test_the_length_is_the_servers_where_none_is_set():
    with server() as (url, seen):
        sampled(url)
    assert "max_tokens" not in seen[0][2]


def test_finish_and_tokens():
    with server(lambda body: (200, completion("x", "length", 9))) as (url, _):
        found = sampled(url, samples=[0])
    assert {(g.finish, g.tokens) for g in found.values()} == {("length", 9)}


def test_unknown_length():
    def reply(body):
        return 200, {**completion("x"), "usage": {"completion_tokens": None}}

    with server(reply) as (url, _):
        assert {g.tokens for g in sampled(url).values()} == {-1}


def test_images_go_along(tmp_path):
    picture = tmp_path / "p.jpg"
    picture.write_bytes(b"jpeg")
    problem = Problem("a", "What is it?", "", (str(picture), "https://x.org/y.png"))
    with server(lambda body: (200, completion("a cat"))) as (url, seen):
        sampled(url, [problem], [0])
    urls = [part["image_url"]["url"] for part in seen[0][2]["messages"][0]["content"][:-1]]
    encoded = base64.b64encode(b"jpeg").decode()
    assert urls == [f"data:image/jpeg;base64,{encoded}", "https://x.org/y.png"]
    assert seen[0][2]["messages"][0]["content"][-1] == {"type": "text", "text": "What is it?"}


def test_missing_image_is_said(tmp_path):
    with server() as (url, _), pytest.raises(ValueError, match="image"):
        sampled(url, [Problem("a", "?", "", (str(tmp_path / "none.png"),))])


def test_busy_server_is_asked_again(monkeypatch):
    monkeypatch.setattr("nemo_algos.lab.evals.endpoint.FIRST_WAIT", 0.01)
    replies = iter([(503, {}), (429, {}), (200, completion("x"))])
    with server(lambda body: next(replies)) as (url, seen):
        found = sampled(url, PROBLEMS[:1], [0])
    assert (len(seen), found["a", 0].response) == (3, "x")


def test_a_wrong_address_ends_it_and_what_came_before_is_kept():
    replies = iter([(200, completion("x")), (404, {"error": "no model m"})])
    with server(lambda body: next(replies)) as (url, _):
        model = EndpointModel(engine="endpoint", url=url, name="m", concurrency=1)
        found = []
        with pytest.raises(ValueError, match=r"status 404.*no model m.*`model.url`"):
            Endpoint(model, SamplingSection()).sample([(PROBLEMS[0], [0, 1])], found.extend)
    assert [g.response for g in found] == ["x"]


def test_a_refused_request_is_counted_and_the_others_go_on():
    def refuses(body):
        wrong = body["messages"][0]["content"] == "1 + 2?"
        return (400, {"error": "too long"}) if wrong else (200, completion("x"))

    with server(refuses) as (url, seen):
        found = sampled(url)
    assert len(seen) == 4
    assert [found[p, 0].refused for p in "ab"] == [False, True]
    assert found["b", 1].response == ""
    assert (
        found["b", 1].finish.startswith("refused: status 400")
        and "too long" in found["b", 1].finish
    )


def test_system_and_further_keys():
    with server(lambda body: (200, completion("x"))) as (url, seen):
        sampled(url, PROBLEMS[:1], [0], system="Be brief.", extra={"top_k": 20})
        plain, changed = (
            Endpoint(EndpointModel(engine="endpoint", url=url, name="m", **s), SamplingSection())
            for s in ({}, {"system": "Be brief."})
        )
    body = seen[0][2]
    assert body["top_k"] == 20
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert plain.identity != changed.identity


def test_base_models_complete_a_template():
    reply = {"choices": [{"text": " 2", "finish_reason": "stop"}]}
    with server(lambda body: (200, reply)) as (url, seen):
        found = sampled(url, PROBLEMS[:1], [0], completions="Q: {prompt}\nA:")
    path, _, body = seen[0]
    assert (path, body["prompt"]) == ("/v1/completions", "Q: 1 + 1?\nA:")
    assert found["a", 0].response == " 2" and found["a", 0].tokens == -1


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_that_the_server_cuts_off_is_kept(key):
    message = {"content": "2", key: "one and one"}
    reply = {"choices": [{"message": message, "finish_reason": "stop"}]}
    with server(lambda body: (200, reply)) as (url, _):
        found = sampled(url, PROBLEMS[:1], [0])
    assert found["a", 0].response == "<think>\none and one\n</think>\n2"


def test_unreachable_server_is_said(monkeypatch):
    monkeypatch.setattr("nemo_algos.lab.evals.endpoint.FIRST_WAIT", 0.01)
    with server() as (url, _):
        pass
    with pytest.raises(ValueError, match="ConnectError"):
        sampled(url, retries=1)


@pytest.mark.parametrize("reply", [{}, {"choices": []}, {"choices": [{"text": "x"}]}, []])
def test_another_protocol_is_no_response(reply):
    with server(lambda body: (200, reply)) as (url, _):
        found = sampled(url, retries=0)
    assert len(found) == 4 and all(g.refused and not g.response for g in found.values())
    assert "completion" in found["a", 0].finish


CHAT = {"message": {"content": "x"}, "logprobs": {"content": [{"logprob": -0.5}, {"logprob": 0}]}}
COMPLETED = {"text": "x", "logprobs": {"tokens": ["x", ""], "token_logprobs": [-0.5, 0]}}


@pytest.mark.parametrize(
    ("choice", "completions", "asked"), [(CHAT, "", True), (COMPLETED, "{prompt}", 0)]
)
def test_log_probs_where_asked_for(choice, completions, asked):
    sampling = SamplingSection(logprobs=True)
    with server(lambda body: (200, {"choices": [choice]})) as (url, seen):
        with_them = sampled(url, PROBLEMS[:1], [0], sampling, completions=completions)
        without = sampled(url, PROBLEMS[:1], [0], completions=completions)
    assert seen[0][2]["logprobs"] is asked and "logprobs" not in seen[1][2]
    assert (with_them["a", 0].logprobs, without["a", 0].logprobs) == ([-0.5, 0.0], None)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        [],
        {},
        {"content": None},
        {"content": [{"logprob": "x"}]},
        {"content": [None]},
        {"content": [{"logprob": float("nan")}]},
        {"content": [{"logprob": True}]},
        {"content": [{"logprob": 10**400}]},
        {"token_logprobs": [None]},
    ],
)
def test_log_probs_that_are_none_are_said(logprobs, capsys):
    reply = {"choices": [{"message": {"content": "x"}, "logprobs": logprobs}]}
    with server(lambda body: (200, reply)) as (url, _):
        found = sampled(url, sampling=SamplingSection(logprobs=True))
    assert {(g.response, g.logprobs) for g in found.values()} == {("x", None)}
    assert capsys.readouterr().out == Says("warning: log-probs")

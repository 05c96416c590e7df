"""Probes of a live sampler: an OpenAI-compatible server that takes token ids, such as vLLM's."""

import asyncio
import json
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nemo_algos.lab.evals.endpoint import Client, NoAnswer
from nemo_algos.lab.evals.schema import URL
from nemo_algos.lab.mismatch.responses import Array, Responses

SECONDS = 300.0  # of a whole answer
# responses that are asked; tokens generated; of each the likeliest
ROWS = 16
TOKENS = 8
TOP = 20
ASKED = (0.5, 0.5)  # temperature, top-p
# nothing that a model's generation_config would set
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
ROUNDING = 0.1  # nats, mean: bfloat16 stays below
CUT = -9999.0  # what vLLM says for a token that is cut off
CLOSE = 0.02  # of a temperature


class Seen(NamedTuple):
    """probe: its name; fault: whether sampler and trainer differ by it; text: what was seen."""

    probe: str
    fault: bool
    text: str


class Server:
    """Raises ValueError, with what to change, where an answer is not a completion's."""

    def __init__(self, url: str) -> None:
        if not URL.fullmatch(url):
            raise ValueError(
                f"--sampler {url!r} is not a URL. Write it like http://localhost:8000/v1."
            )
        self.client = Client(url, "OPENAI_API_KEY", seconds=SECONDS)
        self.url = self.client.url
        self.models = [
            m["id"] for m in self._asked("/models", "data") if isinstance(m.get("id"), str)
        ]
        if not self.models:
            raise ValueError(f"{url}/models lists no model. Name an OpenAI-compatible server.")

    def choices(self, prompts: Sequence[list[int]], model: str = "", **params: Any) -> list[Any]:
        """A completion of each prompt of token ids, all in one request."""
        body = {"model": model or self.models[0], "prompt": prompts, "max_tokens": 1, **params}
        found = self._asked("/completions", "choices", body)
        if len(found) != len(prompts):
            raise ValueError(f"{self.url} does not complete lists of token ids. Use vLLM's server.")
        return sorted(found, key=lambda choice: str(choice.get("index")).zfill(9))

    def prompt_logprobs(self, rows: Sequence[list[int]], model: str = "") -> list[Array]:
        """Of each id but the first, nats, before any sampling parameter."""
        choices = self.choices(rows, model, prompt_logprobs=0, **PLAIN)
        with self._told("prompt_logprobs for token ids"):
            found = list[Array]()
            for choice, row in zip(choices, rows, strict=True):
                pairs = zip(choice["prompt_logprobs"][1:], row[1:], strict=True)
                found.append(np.array([float(at[str(t)]["logprob"]) for at, t in pairs]))
            return found

    def likeliest(self, prompt: list[int], **params: Any) -> dict[str, float]:
        """Of the first token after it, the log-probs that the server says, by token."""
        (choice,) = self.choices([prompt], logprobs=TOP, return_tokens_as_token_ids=True, **params)
        with self._told("logprobs"):
            top = choice["logprobs"]["top_logprobs"][0]
            return {str(token): float(value) for token, value in top.items()}

    def greedy(self, prompt: list[int], salt: str) -> Array:
        """Log-probs of the first tokens. salt: prompts of another are not taken from the cache."""
        given = {**PLAIN, "temperature": 0.0, "logprobs": 1, "max_tokens": TOKENS}
        (choice,) = self.choices([prompt], cache_salt=salt, **given)
        with self._told("logprobs"):
            return np.array([float(value) for value in choice["logprobs"]["token_logprobs"]])

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise ValueError(f"{self.url} returns no {what}. Use vLLM's server.") from None

    def _asked(self, path: str, key: str, body: dict[str, Any] | None = None) -> list[Any]:
        where = f"{self.url}{path}"
        try:
            content = asyncio.run(self.client.ask(path, body))
        except NoAnswer as error:
            if error.status:
                raise ValueError(f"{where} returned {error}") from None
            raise ValueError(
                f"{where} does not answer: {error}. Check that it runs, or send fewer responses."
            ) from None
        try:
            found = json.loads(content)[key]
        except (ValueError, RecursionError, LookupError, TypeError):
            raise ValueError(
                f"{where} does not return JSON with {key!r}. Name the URL with its /v1."
            ) from None
        if isinstance(found, list):
            return [one for one in found if isinstance(one, dict)]
        return []


def probed(server: Server, responses: Responses) -> list[Seen]:
    """Every probe, of some responses of a dump."""
    some = responses.first(ROWS)
    rows = [r.ids[: r.at[-1] + 1].tolist() for r in some.each]
    alone = [server.prompt_logprobs([row])[0] for row in rows]
    together = server.prompt_logprobs(rows)
    seen = [
        recorded(some, together),
        _apart("batch", "alone and in a batch", alone, together),
        _cache(server, [r.prompt.tolist() for r in some.each]),
        *_sampling(server, some.each[0].prompt.tolist()),
    ]
    return seen + [_adapter(server, rows, together, name) for name in server.models[1:]]


def recorded(some: Responses, now: Sequence[Array]) -> Seen:
    """The server's log-probs of the file's tokens, against both sides of the file."""
    values = np.concatenate([found[r.at - 1] for r, found in zip(some.each, now, strict=True)])
    away = {}
    for n in ("sampler", "trainer"):
        away[n] = float(np.abs(values - some.column(n)).mean())
    text = (
        f"the same tokens differ by {away['sampler']:.2g} nats from the file's sampler and by "
        f"{away['trainer']:.2g} from its trainer (without temperature and top-p)"
    )
    return Seen("recorded", away["sampler"] > ROUNDING, text)


def _apart(name: str, ways: str, first: Sequence[Array], then: Sequence[Array]) -> Seen:
    both = []
    for a, b in zip(first, then, strict=True):
        if len(a) == len(b):
            both.append((a, b))
    d = np.concatenate([np.abs(a - b) for a, b in both]) if both else np.zeros(1)
    text = f"the same tokens {ways}: mean |d| {d.mean():.2g}, largest {d.max():.2g} nats"
    return Seen(name, bool(d.mean() > ROUNDING), text)


def _cache(server: Server, prompts: Sequence[list[int]]) -> Seen:
    salted = [(prompt, secrets.token_hex(8)) for prompt in prompts]
    cold = [server.greedy(prompt, salt) for prompt, salt in salted]
    warm = [server.greedy(prompt, salt) for prompt, salt in salted]
    return _apart("prefix_cache", "from a cold and a warm prefix cache", cold, warm)


def _sampling(server: Server, prompt: list[int]) -> Iterator[Seen]:
    """Which temperature and top-p the log-probs are of: those asked for, and the server's own."""
    plain = server.likeliest(prompt, **PLAIN)
    ways = {
        "asked": {**PLAIN, "temperature": ASKED[0]},
        "top_p": {**PLAIN, "top_p": ASKED[1]},
        "default": {},
    }
    found = {}
    for name, given in ways.items():
        found[name] = solved(plain, server.likeliest(prompt, **given))
    processed = abs(found["asked"][0] - ASKED[0]) < CLOSE
    told = "after" if processed else "before"
    text = (
        f"log-probs are computed {told} the sampling parameters (temperature {ASKED[0]:g} "
        f"was asked, {found['asked'][0]:.2f} found; top-p {ASKED[1]:g} was asked, "
    )
    yield Seen("logprobs_mode", False, f"{text}{found['top_p'][1]:.2f} found)")
    heat, kept = found["default"]
    text = f"a request without parameters has temperature {heat:.2f}"
    text += "" if math.isnan(kept) else f" and keeps {kept:.2f} of the probability"
    text += "" if processed else " (uncertain: the log-probs are computed before the parameters)"
    yield Seen("defaults", processed and (abs(heat - 1) > CLOSE or not kept > 1 - CLOSE), text)


def solved(plain: dict[str, float], other: dict[str, float]) -> tuple[float, float]:
    """The temperature, and at 1 the share of the probability that is kept, else NaN.

    Raises ValueError where no token is in both.
    """
    there = [t for t in plain if other.get(t, CUT) > CUT]
    there.sort(key=lambda t: -plain[t])
    if not there:
        raise ValueError(
            "the server's most likely tokens differ between requests, so no temperature can be read"
        )
    best = there[0]
    least = there[-1]
    theirs = other[best] - other[least]
    heat = (plain[best] - plain[least]) / theirs if theirs else 1.0  # one token says no temperature
    if abs(heat - 1) > CLOSE:
        return heat, math.nan  # the rest of the vocabulary is not known
    return heat, min(1.0, math.exp(plain[best] - other[best]))


def _adapter(server: Server, rows: list[list[int]], base: Sequence[Array], name: str) -> Seen:
    d = np.abs(np.concatenate(server.prompt_logprobs(rows, name)) - np.concatenate(base))
    same = not d.any()
    text = f"{name} differs by {d.mean():.2g} nats from {server.models[0]}"
    return Seen("adapter", same, f"{text}: it is not applied" if same else text)

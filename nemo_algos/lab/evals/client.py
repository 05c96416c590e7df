"""One request to an OpenAI-compatible server, and what every kind of answer means."""

import asyncio
import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self

import httpx

from nemo_algos.lab.evals.api_key import ApiKey
from nemo_algos.lab.evals.schema import EndpointModel
from nemo_algos.untrusted import decompress

BUSY = {429, 503}  # the whole server
PASSING = {408, 409, 425, 500, 502, 504}  # perhaps for this request alone
PARTICULAR = {400, 413, 422}  # of this request: too long, an image that cannot be read
LONGEST_ASKED = 300.0  # seconds that a server may ask to wait
CONNECT_SECONDS = 60.0
DOWN = (httpx.ConnectError, httpx.ConnectTimeout)
LARGEST = 64 << 20  # bytes of an answer
SHOWN = 300  # characters
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
FINISH: dict[str, str] = dict.fromkeys(("stop", "eos_token", "stop_sequence"), "stop")
FINISH |= dict.fromkeys(("length", "max_tokens"), "length")


class Failed(Exception):
    """A failure that may pass. wait: seconds that the server asks for."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class Odd(Failed):
    """The server is there, and has no completion for this request; for others it may have."""


class Refused(Exception):
    """The server will not answer this request, such as one that is too long for its context."""


class Reply(NamedTuple):
    """A response; tokens -1, finish "": unknown; model: the server's name for it.

    logprobs: of its tokens, nats; None where the server sends none.
    """

    text: str
    tokens: int
    finish: str
    model: str
    choices: int
    logprobs: list[float] | None


class Client:
    """Requests to one server, within `async with`."""

    def __init__(self, model: EndpointModel, key: ApiKey) -> None:
        self.model, self.key = model, key
        path = "completions" if model.completions else "chat/completions"
        self.url = f"{model.url.rstrip('/')}/{path}"
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            # A kept connection may hold bytes that nobody asked for: they would be the next answer.
            limits=httpx.Limits(max_connections=model.concurrency, max_keepalive_connections=0),
            headers=HEADERS | key.headers,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._http.__aexit__(*error)

    async def attempt(self, body: bytes) -> Reply:
        """One answer, whole within `model.timeout`.

        Raises Refused for a request that the server will never answer, Failed where another attempt
        may help, ValueError where none will.
        """
        try:
            async with asyncio.timeout(self.model.timeout):
                async with self._http.stream("POST", self.url, content=body) as response:
                    content = await _whole(response)
            return self._read(response, content)
        except TimeoutError:
            limit = f"{self.model.timeout:g} s (`model.timeout`)"
            raise Odd(f"the answer was not complete after {limit}") from None
        except httpx.HTTPError as error:
            kind = Failed if isinstance(error, DOWN) else Odd
            raise kind(self.shown(f"{type(error).__name__}: {error}")) from None
        except Failed as failed:
            raise type(failed)(self.shown(str(failed)), failed.wait) from None

    def _read(self, response: httpx.Response, content: bytes) -> Reply:
        if response.is_success:
            return parse(content, chat=not self.model.completions)
        status, text = response.status_code, content[:4000].decode(errors="replace")
        reason = self.shown(f"status {status}: {text}")
        if status in PARTICULAR:
            raise Refused(reason)
        if status in BUSY | PASSING:
            kind = Failed if status in BUSY else Odd
            raise kind(reason, _seconds(response.headers.get("Retry-After", "")))
        raise ValueError(f"{self.url}: {reason} ({self._hint(response, text)})")

    def _hint(self, response: httpx.Response, text: str) -> str:
        if response.has_redirect_location:
            there = response.headers["Location"]
            return self.shown(f"the server redirects to {there}. Set `model.url` to that.")
        if response.status_code in (401, 403):
            return f"Check the key in the environment variable {self.model.api_key_env}."
        url = "Check `model.url`, including its /v1."
        named = rf"model_not_found|\bmodel\W+{re.escape(self.model.name)}(?!\w)"
        if response.status_code == 404 and re.search(named, text):
            return f"Check `model.name`. {url}"
        return url

    def shown(self, text: str) -> str:
        """A server's text, short and without the key."""
        return self.key.shown(text)[:SHOWN]


async def _whole(response: httpx.Response) -> bytes:
    """Unpacked here: httpx would unpack a bomb before its size could be seen."""
    content, encoding = bytearray(), response.headers.get("Content-Encoding", "identity").lower()
    async for part in response.aiter_raw():
        content += part
        if len(content) > LARGEST:
            raise Odd(f"the answer exceeds {LARGEST >> 20} MiB")
    try:
        return decompress(bytes(content), LARGEST) if encoding == "gzip" else bytes(content)
    except ValueError as error:
        raise Odd(f"the gzip of the answer cannot be read: {error}") from None


def _seconds(retry_after: str) -> float:
    """The wait that the header Retry-After asks for, a number or a date; up to 300."""
    try:
        if re.fullmatch(r"\d+(\.\d+)?", retry_after):
            seconds = float(retry_after)
        else:
            date = parsedate_to_datetime(retry_after)
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_ASKED)


def parse(content: bytes, *, chat: bool) -> Reply:
    """The first completion of an answer. Raises Odd where there is none."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise Odd(f"the answer is not JSON: {content[:2000].decode(errors='replace')}") from None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choices = choices if isinstance(choices, list) else []
    first, text = choices[0] if choices else None, None
    if isinstance(first, dict):
        completed = None if "message" in first else _text(first.get("text"))
        text = _message(first.get("message")) if chat else completed
    if not isinstance(first, dict) or text is None:
        raise Odd(f"the answer is not a completion: {json.dumps(answer)[:2000]}")
    finish, model = (
        x if isinstance(x, str) else "" for x in (first.get("finish_reason"), answer.get("model"))
    )
    tokens, logprobs = _tokens(answer.get("usage")), _logprobs(first.get("logprobs"))
    return Reply(text, tokens, FINISH.get(finish, ""), model, len(choices), logprobs)


def _message(message: Any) -> str | None:
    """What the model wrote, its reasoning too where the server has cut it off the answer."""
    if not isinstance(message, dict):
        return None
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    known = isinstance(reasoning, str) and reasoning
    thought = f"<think>\n{reasoning}\n</think>\n" if known else ""
    content = _text(message.get("content"))
    return None if content is None else thought + content


def _text(content: Any) -> str | None:
    """A string, or a list of parts, of which those that are text; empty for null."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else None
    parts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "".join(part for part in parts if isinstance(part, str))


def _logprobs(found: Any) -> list[float] | None:
    """A chat's are in objects, one a token; a completion's are a list of numbers."""
    if not isinstance(found, dict):
        return None
    values = found.get("token_logprobs")
    if isinstance(tokens := found.get("content"), list):
        values = [token.get("logprob") if isinstance(token, dict) else None for token in tokens]
    if not isinstance(values, list):
        return None
    plain = (v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool))
    numbers = [float(v) for v in plain if abs(v) < 2**53]
    return numbers if len(numbers) == len(values) else None


def _tokens(usage: Any) -> int:
    number = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**53:
        return -1
    return number

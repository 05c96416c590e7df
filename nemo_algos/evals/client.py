"""One request to an OpenAI-compatible server, and what every kind of answer means."""

import asyncio
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx

from nemo_algos.evals.api_key import ApiKey
from nemo_algos.evals.reply import Failed, Odd, Refused, Reply, parsed
from nemo_algos.evals.schema import EndpointModel

PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
PARTICULAR = {400, 413, 422}  # of this request: too long, an image that cannot be read
LONGEST_ASKED = 300.0  # seconds that a server may ask to wait
CONNECT_SECONDS = 60.0
LARGEST = 64 << 20  # bytes of an answer
SHOWN = 300  # characters


class Client:
    """Requests to one server, within `async with`."""

    def __init__(self, model: EndpointModel, key: ApiKey) -> None:
        self.model, self.key = model, key
        path = "completions" if model.completions else "chat/completions"
        self.url = f"{model.url.rstrip('/')}/{path}"
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=model.concurrency),
            headers={"Content-Type": "application/json", **key.headers},
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
        begun = False
        try:
            async with asyncio.timeout(self.model.timeout):
                async with self._http.stream("POST", self.url, content=body) as response:
                    begun = True
                    content = await _whole(response)
            return self._read(response, content)
        except TimeoutError:
            reason = f"no whole answer in {self.model.timeout:g} s (model.timeout)"
            raise (Odd if begun else Failed)(reason) from None
        except httpx.HTTPError as error:
            kind = Odd if isinstance(error, httpx.DecodingError) else Failed
            raise kind(self.shown(f"{type(error).__name__}: {error}")) from None
        except Failed as failed:
            raise type(failed)(self.shown(str(failed)), failed.wait) from None

    def _read(self, response: httpx.Response, content: bytes) -> Reply:
        if response.is_success:
            return parsed(content, chat=not self.model.completions)
        status, text = response.status_code, content[:4000].decode(errors="replace")
        reason = self.shown(f"status {status}: {text}")
        if status in PARTICULAR:
            raise Refused(reason)
        if status in PASSING:
            raise Failed(reason, _seconds(response.headers.get("Retry-After", "")))
        raise ValueError(f"{self.url}: {reason} ({self._hint(response, text)})")

    def _hint(self, response: httpx.Response, text: str) -> str:
        if response.has_redirect_location:
            return self.shown(f"it is redirected to {response.headers['Location']}: set model.url")
        if response.status_code in (401, 403):
            return f"is the key in the environment variable {self.model.api_key_env} right?"
        url = "is model.url right, with its /v1?"
        named = rf"model_not_found|\bmodel\W+{re.escape(self.model.name)}(?!\w)"
        if response.status_code == 404 and re.search(named, text):
            return f"is model.name right? else {url}"
        return url

    def shown(self, text: str) -> str:
        """A server's text, short and without the key."""
        return self.key.shown(text)[:SHOWN]


async def _whole(response: httpx.Response) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > LARGEST:
            raise Odd(f"an answer of more than {LARGEST >> 20} MiB")
    return bytes(content)


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

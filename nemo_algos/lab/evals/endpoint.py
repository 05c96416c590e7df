"""Responses of an OpenAI-compatible server (vLLM, SGLang, TensorRT-LLM, NeMo-RL's HTTP server).

The openai client asks, waits and asks again. A server may say anything: an answer is read up to a
size and a time, and nothing that is shown or stored of it has the API key.
"""

import asyncio
import base64
import json
import mimetypes
import os
import re
from collections.abc import Callable
from contextlib import aclosing
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import openai
from pydantic import FiniteFloat, TypeAdapter

from nemo_algos.lab.evals.problem import REFUSED, URLS, Add, Generation, Problem, Wanted, seed_of
from nemo_algos.lab.evals.schema import EndpointModel, SamplingSection
from nemo_algos.untrusted import decompress, one_line

CONNECT_SECONDS = 60.0
LARGEST = 64 << 20  # bytes of an answer
SHOWN = 300  # characters of what a server says
HIDDEN = "[the API key]"
SECRET = 8  # characters; a shorter key, such as EMPTY, may be a word of a response
ODD_IN_A_ROW = 8  # problems without a completion: it is the server then, not a request
BUSY = {429, 503}  # the whole server
PARTICULAR = {400, 413, 422}  # of this request: too long, an image that cannot be read
PASSING = {200, 408, 409, 425}  # perhaps of this request alone; and what is above 499
FINISH: dict[str, str] = dict.fromkeys(("stop", "eos_token", "stop_sequence"), "stop")
FINISH |= dict.fromkeys(("length", "max_tokens"), "length")
DOWN = (httpx.ConnectError, httpx.ConnectTimeout)
LOGPROBS = TypeAdapter(list[FiniteFloat])


class NoAnswer(Exception):
    """What is shown of a failure.

    status: 200 for an answer that is no completion, 0 where none came. cause: why none came.
    """

    def __init__(self, reason: str, status: int = 0, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.cause = cause


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


class _Http(httpx.AsyncClient):
    """Answers are whole within `seconds`, and of LARGEST bytes at most.

    httpx would wait for each byte as long, and unpack a bomb before its size could be seen.
    """

    def __init__(self, seconds: float, connections: int) -> None:
        # A kept connection may hold bytes that nobody asked for: they would be the next answer.
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        super().__init__(limits=limits)
        self.seconds = seconds

    async def send(self, request: httpx.Request, **given: Any) -> httpx.Response:
        """Raises TimeoutError, ValueError or httpx's: to openai all are failed connections."""
        content = bytearray()
        try:
            async with asyncio.timeout(self.seconds):
                answer = await super().send(request, **{**given, "stream": True})
                async with aclosing(answer):
                    async for part in answer.aiter_raw():
                        content += part
                        if len(content) > LARGEST:
                            raise ValueError(f"the answer exceeds {LARGEST >> 20} MiB")
        except TimeoutError:
            raise TimeoutError(f"the answer was not complete after {self.seconds:g} s") from None
        packed = answer.headers.pop("Content-Encoding", "").lower() == "gzip"
        plain = decompress(bytes(content), LARGEST) if packed else bytes(content)
        return httpx.Response(
            answer.status_code, headers=answer.headers, content=plain, request=request
        )


class Client:
    """One server, and the key of an environment variable, which goes to that server alone.

    Raises ValueError, which does not show it, for a key that no header can hold.
    """

    def __init__(
        self, url: str, variable: str, *, seconds: float, connections: int = 1, retries: int = 0
    ) -> None:
        self.url = url.rstrip("/")
        self._key = os.environ.get(variable, "").strip()
        if not all("!" <= c <= "~" for c in self._key):
            raise ValueError(
                f"the API key in the environment variable {variable} contains a space, a line "
                "break or a non-ASCII character. Set it again."
            )
        # without a key the library would send one of its own variables
        authorization = f"Bearer {self._key}" if self._key else openai.Omit()
        self._headers = {"Authorization": authorization, "Accept-Encoding": "gzip"}
        self._openai = openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self._key or "none",
            max_retries=retries,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            http_client=_Http(seconds, connections),
        )

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The answer to a POST of `body`, or to a GET. Raises NoAnswer."""
        given: Any = {"cast_to": httpx.Response, "options": {"headers": self._headers}}
        try:
            if body is None:
                answer = await self._openai.get(path, **given)
            else:
                answer = await self._openai.post(path, content=json.dumps(body).encode(), **given)
        except openai.APIStatusError as error:
            answer = error.response
            said = answer.headers["Location"] if answer.has_redirect_location else answer.text
            reason = self.shown(f"status {error.status_code}: {said}")
            raise NoAnswer(reason, error.status_code) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            reason = self.shown(str(cause)) or type(cause).__name__
            raise NoAnswer(reason, cause=cause) from None
        return answer.content

    def shown(self, text: str) -> str:
        """What a server or a library said: one line, short, without the key."""
        return " ".join(one_line(self._hidden(text)).split())[:SHOWN]

    def without_key(self, response: str) -> str:
        """A response as it is stored, for a server may send headers back."""
        if len(self._key) >= SECRET:
            return self._hidden(response)
        return response

    def _hidden(self, text: str) -> str:
        for spelling in (self._key, quote(self._key), quote(self._key, safe="")):
            text = text.replace(spelling, HIDDEN) if spelling else text
        return text


class Endpoint:
    """`POST {url}/chat/completions`, one request per response, with a seed of its own.

    say: told once of each oddity. Raises ValueError for a key that cannot be sent.
    """

    def __init__(
        self, model: EndpointModel, sampling: SamplingSection, say: Callable[[str], object] = print
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.say = say
        self.path = "/completions" if model.completions else "/chat/completions"
        self.client = Client(
            model.url,
            model.api_key_env,
            seconds=model.timeout,
            connections=model.concurrency,
            retries=model.retries,
        )
        self._odd: set[str] = set()  # problems, since the last completion
        self._said: set[str] = set()
        asked = {"system": model.system, "completions": model.completions, "extra": model.extra}
        given = {name: value for name, value in asked.items() if value}
        self.identity = {"engine": "endpoint", "model": model.name, **given}

    def sample(self, wanted: Wanted, add: Add) -> None:
        """See Sampler. Every problem's first samples come first.

        Raises ValueError where the server refuses all, stays unreachable or is no such server.
        """
        places = []
        for p, samples in wanted:
            for i in samples:
                places.append((p, i))
        try:
            asyncio.run(self._all(sorted(places, key=itemgetter(1)), add))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _all(self, places: list[tuple[Problem, int]], add: Add) -> None:
        queue = iter(places)

        async def work() -> None:
            for problem, sample in queue:
                add([await self._one(problem, sample)])

        async with asyncio.TaskGroup() as workers:
            for _ in range(self.model.concurrency):
                workers.create_task(work())

    async def _one(self, problem: Problem, sample: int) -> Generation:
        body = self._body(problem, sample)
        try:
            answer = await self.client.ask(self.path, body)
            reply = parse(answer, chat=not self.model.completions)
        except NoAnswer as error:
            late = " (`model.timeout`)" if isinstance(error.cause, TimeoutError) else ""
            reason = f"{self.client.shown(str(error))}{late}"
            self._refuse(problem, error, reason)
            return Generation(problem.id, sample, "", -1, f"{REFUSED}: {reason}")
        self._odd.clear()
        self._remark(reply)
        text = self.client.without_key(reply.text)
        logprobs = reply.logprobs if self.sampling.logprobs else None
        return Generation(problem.id, sample, text, reply.tokens, reply.finish, logprobs)

    def _refuse(self, problem: Problem, error: NoAnswer, reason: str) -> None:
        """Raises ValueError where it is not this request alone that gets no answer."""
        url = f"{self.client.url}{self.path}"
        if isinstance(error.cause, DOWN) or error.status in BUSY:
            raise ValueError(f"{url}: {reason}. Run again to continue from what is stored.")
        if error.status in PARTICULAR:
            return
        if error.status and error.status not in PASSING and error.status < 500:
            raise ValueError(f"{url}: {reason} ({self._hint(error.status, reason)})")
        self._odd.add(problem.id)
        if len(self._odd) >= ODD_IN_A_ROW:
            raise ValueError(
                f"{url} gave no completion for {len(self._odd)} problems: {reason}. "
                "Run again to continue from what is stored."
            )

    def _hint(self, status: int, reason: str) -> str:
        if 300 <= status < 400:
            return "The server redirects: set `model.url` to where."
        if status in (401, 403):
            return f"Check the key in the environment variable {self.model.api_key_env}."
        url = "Check `model.url`, including its /v1."
        named = rf"model_not_found|\bmodel\W+{re.escape(self.model.name)}(?!\w)"
        if status == 404 and re.search(named, reason):
            return f"Check `model.name`. {url}"
        return url

    def _remark(self, reply: Reply) -> None:
        if reply.model not in ("", self.model.name):
            other = self.client.shown(reply.model)
            self._say_once("model", f"the server reports model {other}, not {self.model.name}")
        if reply.choices > 1:
            self._say_once("choices", "the server sends several choices: only the first is used")
        if self.sampling.logprobs and reply.logprobs is None:
            self._say_once("logprobs", "the server sends no log-probs, so none are stored")

    def _say_once(self, about: str, remark: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.say(f"warning: {remark}")

    def _body(self, problem: Problem, sample: int) -> dict[str, Any]:
        s = self.sampling
        m = self.model
        body: dict[str, Any] = {
            "model": m.name,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "seed": seed_of(s.seed, problem.id, sample),
            **m.extra,
        }
        if s.max_tokens is not None:
            body["max_tokens"] = s.max_tokens
        if s.logprobs:
            body["logprobs"] = 0 if m.completions else True  # of the token alone
        if m.completions:
            body["prompt"] = m.completions.replace("{prompt}", problem.prompt)
        else:
            system = [{"role": "system", "content": m.system}] if m.system else []
            body["messages"] = [*system, *problem.before, _asked(problem)]
        return body


def _asked(problem: Problem) -> dict[str, Any]:
    """The user's message, its images first."""
    images = []
    for i in problem.images:
        images.append({"type": "image_url", "image_url": {"url": _url(i)}})
    text = {"type": "text", "text": problem.prompt}
    return {"role": "user", "content": [*images, text] if images else problem.prompt}


def _url(image: str) -> str:
    """A URL as it is, a file as a data URL. Raises ValueError where there is no such file."""
    if image.startswith(URLS):
        return image
    try:
        content = base64.b64encode(Path(image).read_bytes()).decode()
    except OSError as error:
        raise ValueError(f"cannot read the image {image}: {error}") from None
    return f"data:{mimetypes.guess_type(image)[0] or 'image/png'};base64,{content}"


def parse(content: bytes, *, chat: bool) -> Reply:
    """The first completion of an answer. Raises NoAnswer where there is none."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        text = content[:2000].decode(errors="replace")
        raise NoAnswer(f"the answer is not JSON: {text}", 200) from None
    try:
        first = answer["choices"][0]
        if chat is not ("message" in first):
            raise TypeError
        text = _message(first["message"]) if chat else _text(first.get("text"))
    except (LookupError, TypeError, AttributeError):
        reason = f"the answer is not a completion: {json.dumps(answer)[:2000]}"
        raise NoAnswer(reason, 200) from None
    model = answer.get("model")
    return Reply(
        text=text,
        tokens=_tokens(answer.get("usage")),
        finish=FINISH.get(str(first.get("finish_reason")), ""),
        model=model if isinstance(model, str) else "",
        choices=len(answer["choices"]),
        logprobs=_logprobs(first.get("logprobs")),
    )


def _message(message: Any) -> str:
    """What the model wrote, its reasoning too where the server has cut it off the answer."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    known = isinstance(reasoning, str) and reasoning
    thought = f"<think>\n{reasoning}\n</think>\n" if known else ""
    return thought + _text(message.get("content"))


def _text(content: Any) -> str:
    """A string, or a list of parts, of which those that are text; empty for null."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError
    text = ""
    for part in content:
        if isinstance(part, dict):
            part = part.get("text")
        if isinstance(part, str):
            text += part
    return text


def _tokens(usage: Any) -> int:
    number = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if type(number) is int and 0 <= number < 2**53:
        return number
    return -1


def _logprobs(found: Any) -> list[float] | None:
    """A chat's are in objects, one a token; a completion's are a list of numbers."""
    try:
        tokens = found.get("content")
        in_objects = isinstance(tokens, list)
        values = [t["logprob"] for t in tokens] if in_objects else found["token_logprobs"]
        return LOGPROBS.validate_python(values, strict=True)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None

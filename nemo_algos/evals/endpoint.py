"""Responses of an OpenAI-compatible server (vLLM, SGLang, TensorRT-LLM, NeMo-RL's HTTP server)."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from nemo_algos.evals.problem import URLS, Problem
from nemo_algos.evals.samplers import Add, Wanted, seed_of
from nemo_algos.evals.schema import EndpointModel, SamplingSection
from nemo_algos.evals.store import REFUSED, Generation

PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
PARTICULAR = {400, 413, 422}  # of this request: too long, an image that cannot be read
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before another attempt, doubled each time


class Refused(Exception):
    """The server will not answer this request, such as one that is too long for its context."""


class Endpoint:
    """`POST {url}/chat/completions`, one request per response, with a seed of its own."""

    def __init__(self, model: EndpointModel, sampling: SamplingSection) -> None:
        self.model, self.sampling = model, sampling
        asked = {"system": model.system, "completions": model.completions, "extra": model.extra}
        given = {name: value for name, value in asked.items() if value}
        self.identity = {"engine": "endpoint", "model": model.name, **given}

    def sample(self, wanted: Wanted, add: Add) -> None:
        """See Sampler. At most `concurrency` requests are under way.

        Raises ValueError where the server refuses a request or stays unreachable.
        """
        try:
            asyncio.run(self._all([(p, i) for p, samples in wanted for i in samples], add))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _all(self, places: list[tuple[Problem, int]], add: Add) -> None:
        key, queue = os.environ.get(self.model.api_key_env), iter(places)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=self.model.concurrency)
        async with (
            httpx.AsyncClient(timeout=self.model.timeout, limits=limits, headers=headers) as client,
            asyncio.TaskGroup() as workers,
        ):
            for _ in range(self.model.concurrency):
                workers.create_task(self._work(client, queue, add))

    async def _work(
        self, client: httpx.AsyncClient, queue: Iterator[tuple[Problem, int]], add: Add
    ) -> None:
        for problem, sample in queue:
            add([await self._one(client, problem, sample)])

    async def _one(self, client: httpx.AsyncClient, problem: Problem, sample: int) -> Generation:
        try:
            answer = await self._post(client, self._body(problem, sample))
        except Refused as refused:
            return Generation(problem.id, sample, "", -1, f"{REFUSED}: {refused}")
        try:
            choice = answer["choices"][0]
            text = choice["text"] if self.model.completions else _said(choice["message"])
            tokens = (answer.get("usage") or {}).get("completion_tokens")
            finish = "stop" if choice["finish_reason"] == "stop" else "length"
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.model.url} answered something else than a completion ({error!r}): "
                f"{str(answer)[:200]}"
            ) from None
        return Generation(problem.id, sample, text, -1 if tokens is None else tokens, finish)

    def _body(self, problem: Problem, sample: int) -> dict[str, Any]:
        s, m = self.sampling, self.model
        body = {
            "model": m.name,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "seed": seed_of(s.seed, problem.id, sample),
            **m.extra,
        }
        if s.max_tokens is not None:
            body["max_tokens"] = s.max_tokens
        if m.completions:
            return {**body, "prompt": m.completions.replace("{prompt}", problem.prompt)}
        system = [{"role": "system", "content": m.system}] if m.system else []
        return {**body, "messages": [*system, {"role": "user", "content": _content(problem)}]}

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
        """Raises Refused for a request that the server will never answer, ValueError where none
        would be answered, or a passing failure does not pass."""
        path = "completions" if self.model.completions else "chat/completions"
        url, why = f"{self.model.url.rstrip('/')}/{path}", ""
        for attempt in range(self.model.retries + 1):
            if attempt:
                await asyncio.sleep(min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT))
            try:
                response = await client.post(url, json=body)
            except httpx.TransportError as error:
                why = f"{type(error).__name__}: {error}"
                continue
            why = f"status {response.status_code}: {response.text[:300]}"
            if response.status_code == 200:
                with suppress(ValueError):  # no JSON: a proxy's page
                    return response.json()
            elif response.status_code in PARTICULAR:
                raise Refused(why)
            elif response.status_code not in PASSING:
                raise ValueError(f"{url}: {why} (is model.url right, with its /v1?)")
        raise ValueError(f"{url}: {why}; run again to go on from what is stored")


def _said(message: dict[str, Any]) -> str:
    """What the model wrote, its reasoning too where the server has cut it off the answer."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    thought = f"<think>\n{reasoning}\n</think>\n" if reasoning else ""
    return thought + (message["content"] or "")


def _content(problem: Problem) -> str | list[dict[str, Any]]:
    if not problem.images:
        return problem.prompt
    images = [{"type": "image_url", "image_url": {"url": _url(i)}} for i in problem.images]
    return [*images, {"type": "text", "text": problem.prompt}]


def _url(image: str) -> str:
    """A URL as it is, a file as a data URL. Raises ValueError where there is no such file."""
    if image.startswith(URLS):
        return image
    try:
        content = base64.b64encode(Path(image).read_bytes()).decode()
    except OSError as error:
        raise ValueError(f"cannot read the image {image}: {error}") from None
    return f"data:{mimetypes.guess_type(image)[0] or 'image/png'};base64,{content}"

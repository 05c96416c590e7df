"""Responses of an OpenAI-compatible server (vLLM, SGLang, TensorRT-LLM, NeMo-RL's HTTP server)."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from nemo_algos.evals.problem import Problem
from nemo_algos.evals.samplers import Add, Wanted, seed_of
from nemo_algos.evals.schema import EndpointModel, SamplingSection
from nemo_algos.evals.store import Generation

RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before another attempt, doubled each time


class Endpoint:
    """`POST {url}/chat/completions`, one request per response, with a seed of its own."""

    def __init__(self, model: EndpointModel, sampling: SamplingSection) -> None:
        self.model, self.sampling = model, sampling
        self.identity = {"engine": "endpoint", "model": model.name}

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
        body = self._body(problem, sample)
        answer = await self._post(client, body)
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] or ""
            tokens = (answer.get("usage") or {}).get("completion_tokens")
            finish = "stop" if choice["finish_reason"] == "stop" else "length"
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.model.url} answered something else than a chat completion ({error!r}): "
                f"{str(answer)[:200]}"
            ) from None
        return Generation(problem.id, sample, text, -1 if tokens is None else tokens, finish)

    def _body(self, problem: Problem, sample: int) -> dict[str, Any]:
        s = self.sampling
        body = {
            "model": self.model.name,
            "messages": [{"role": "user", "content": _content(problem)}],
            "temperature": s.temperature,
            "top_p": s.top_p,
            "seed": seed_of(s.seed, problem.id, sample),
        }
        return body if s.max_tokens is None else {**body, "max_tokens": s.max_tokens}

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
        url, why = f"{self.model.url.rstrip('/')}/chat/completions", ""
        for attempt in range(self.model.retries + 1):
            if attempt:
                await asyncio.sleep(min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT))
            try:
                response = await client.post(url, json=body)
                if response.status_code == 200:
                    return response.json()
            except (httpx.TransportError, ValueError) as error:  # ValueError: not JSON
                why = f"{type(error).__name__}: {error}"
                continue
            why = f"status {response.status_code}: {response.text[:300]}"
            if response.status_code not in RETRIED:
                raise ValueError(f"{url} refuses the request: {why}")
        raise ValueError(f"{url}: {why}; what came back is stored, run again to go on")


def _content(problem: Problem) -> str | list[dict[str, Any]]:
    if not problem.images:
        return problem.prompt
    images = [{"type": "image_url", "image_url": {"url": _url(i)}} for i in problem.images]
    return [*images, {"type": "text", "text": problem.prompt}]


def _url(image: str) -> str:
    """A URL as it is, a file as a data URL. Raises ValueError where there is no such file."""
    if image.startswith(("http://", "https://", "data:")):
        return image
    try:
        content = base64.b64encode(Path(image).read_bytes()).decode()
    except OSError as error:
        raise ValueError(f"cannot read the image {image}: {error}") from None
    return f"data:{mimetypes.guess_type(image)[0] or 'image/png'};base64,{content}"

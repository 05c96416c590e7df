"""Responses of an OpenAI-compatible server (vLLM, SGLang, TensorRT-LLM, NeMo-RL's HTTP server)."""

import asyncio
import base64
import json
import mimetypes
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from nemo_algos.lab.evals.api_key import ApiKey
from nemo_algos.lab.evals.client import Client, Failed, Odd, Refused, Reply
from nemo_algos.lab.evals.problem import REFUSED, URLS, Add, Generation, Problem, Wanted, seed_of
from nemo_algos.lab.evals.schema import EndpointModel, SamplingSection

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before another attempt, doubled each time
ODD_IN_A_ROW = 8  # problems without a completion: it is the server then, not a request


class Endpoint:
    """`POST {url}/chat/completions`, one request per response, with a seed of its own.

    say: told once of each oddity. Raises ValueError for a key that cannot be sent.
    """

    def __init__(
        self, model: EndpointModel, sampling: SamplingSection, say: Callable[[str], object] = print
    ) -> None:
        self.model, self.sampling, self.say = model, sampling, say
        self.key = ApiKey(model.api_key_env)
        self._odd: set[str] = set()  # problems, since the last completion
        self._remarks: set[str] = set()
        asked = {"system": model.system, "completions": model.completions, "extra": model.extra}
        given = {name: value for name, value in asked.items() if value}
        self.identity = {"engine": "endpoint", "model": model.name, **given}

    def sample(self, wanted: Wanted, add: Add) -> None:
        """See Sampler. Every problem's first samples come first.

        Raises ValueError where the server refuses all, stays unreachable or is no such server.
        """
        places = [(p, i) for p, samples in wanted for i in samples]
        try:
            asyncio.run(self._all(sorted(places, key=itemgetter(1)), add))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _all(self, places: list[tuple[Problem, int]], add: Add) -> None:
        queue = iter(places)

        async def work() -> None:
            for problem, sample in queue:
                add([await self._one(client, problem, sample)])

        async with Client(self.model, self.key) as client, asyncio.TaskGroup() as workers:
            for _ in range(self.model.concurrency):
                workers.create_task(work())

    async def _one(self, client: Client, problem: Problem, sample: int) -> Generation:
        try:
            reply = await self._answer(client, self._body(problem, sample))
        except (Refused, Odd) as refused:
            if isinstance(refused, Odd):
                self._odd.add(problem.id)
            if len(self._odd) >= ODD_IN_A_ROW:
                raise ValueError(
                    f"{client.url} gave no completion for {len(self._odd)} problems: {refused}. "
                    "Run again to continue from what is stored."
                ) from None
            return Generation(problem.id, sample, "", -1, f"{REFUSED}: {refused}")
        self._odd.clear()
        self._remark(reply, client)
        text = self.key.without(reply.text)
        logprobs = reply.logprobs if self.sampling.logprobs else None
        return Generation(problem.id, sample, text, reply.tokens, reply.finish, logprobs)

    def _remark(self, reply: Reply, client: Client) -> None:
        if reply.model not in ("", self.model.name):
            other = client.shown(reply.model)
            what = f"the server reports model {other}, not {self.model.name}"
            self._say_once("model", what)
        if reply.choices > 1:
            self._say_once("choices", "the server sends several choices: only the first is used")
        if self.sampling.logprobs and reply.logprobs is None:
            self._say_once("logprobs", "the server sends no log-probs, so none are stored")

    def _say_once(self, about: str, remark: str) -> None:
        if about not in self._remarks:
            self._remarks.add(about)
            self.say(f"warning: {remark}")

    def _body(self, problem: Problem, sample: int) -> bytes:
        s, m = self.sampling, self.model
        body = {
            "model": m.name,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "seed": seed_of(s.seed, problem.id, sample),
            **m.extra,
            **({} if s.max_tokens is None else {"max_tokens": s.max_tokens}),
        }
        if s.logprobs:
            body["logprobs"] = 0 if m.completions else True  # of the token alone
        if m.completions:
            body["prompt"] = m.completions.replace("{prompt}", problem.prompt)
        else:
            system = [{"role": "system", "content": m.system}] if m.system else []
            text, images = problem.prompt, map(_url, problem.images)
            parts: list[Any] = [{"type": "image_url", "image_url": {"url": i}} for i in images]
            content = [*parts, {"type": "text", "text": text}] if parts else text
            body["messages"] = [*system, *problem.before, {"role": "user", "content": content}]
        return json.dumps(body).encode()

    async def _answer(self, client: Client, body: bytes) -> Reply:
        """The reply, after up to `retries` failures.

        Raises Refused for a request that the server will never answer, Odd for one that it keeps
        failing at, ValueError where none would be answered, or the server is down or busy for good.
        """
        failure = Failed("")
        for attempt in range(self.model.retries + 1):
            try:
                return await client.attempt(body)
            except Failed as failed:
                failure = failed
            if attempt < self.model.retries:
                await asyncio.sleep(max(min(FIRST_WAIT * 2**attempt, LONGEST_WAIT), failure.wait))
        if isinstance(failure, Odd):
            raise failure
        raise ValueError(f"{client.url}: {failure}. Run again to continue from what is stored.")


def _url(image: str) -> str:
    """A URL as it is, a file as a data URL. Raises ValueError where there is no such file."""
    if image.startswith(URLS):
        return image
    try:
        content = base64.b64encode(Path(image).read_bytes()).decode()
    except OSError as error:
        raise ValueError(f"cannot read the image {image}: {error}") from None
    return f"data:{mimetypes.guess_type(image)[0] or 'image/png'};base64,{content}"

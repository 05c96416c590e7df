"""An OpenAI-compatible server, as a config names it. Loads no torch."""

import json
import os
import re
from typing import Any, Literal

from pydantic import Field, field_validator

from nemo_algos.config import Section

URL = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/\S*)?")
KEY_GOES = "Put a key into the environment variable of `model.api_key_env`."
# keys of a request, and what decides them
DECIDED = {
    "model": "model.name",
    **dict.fromkeys(("messages", "prompt"), "the benchmark"),
    **dict.fromkeys(("n", "best_of"), "`sampling.samples`, as a request is for one response"),
    **dict.fromkeys(("stream", "stream_options"), "answers are never streamed"),
    "echo": "responses never include the prompt",
    "seed": "sampling.seed",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "max_tokens": "sampling.max_tokens",
    "logprobs": "sampling.logprobs",
    **dict.fromkeys(("api_key", "Authorization", "authorization"), KEY_GOES),
    **dict.fromkeys(("headers", "extra_headers"), KEY_GOES),
}


class EndpointModel(Section):
    """An OpenAI-compatible server, such as vLLM's."""

    engine: Literal["endpoint"]
    url: str = "http://localhost:8000/v1"
    """It ends in /v1."""
    name: str
    """The model, as the server names it."""
    system: str = ""
    """A message before the problem."""
    completions: str = ""
    """Template with {prompt} that is sent to /completions instead of a chat, for base models."""
    extra: dict[str, Any] = Field(default={})
    """More keys for every request, such as top_k, stop or chat_template_kwargs."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that has the API key."""
    concurrency: int = Field(default=32, gt=0)
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for a whole answer."""
    retries: int = Field(default=5, ge=0)

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if re.search("[?#@]", url):  # it is not shown: it may hold a password
            raise ValueError(f"must not contain a user, a password, ? or #. {KEY_GOES}")
        if not URL.fullmatch(url):
            raise ValueError(f"must be a URL, such as http://localhost:8000/v1, got {url}")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_a_variable(cls, name: str) -> str:
        if not name.isidentifier():  # nor is this: it may be the key itself
            raise ValueError("must be the name of an environment variable, not the key itself")
        if name != cls.model_fields["api_key_env"].default and name not in os.environ:
            raise ValueError("no environment variable of that name is set. Export it.")
        return name

    @field_validator("completions", mode="before")
    @classmethod
    def _is_a_template(cls, template: Any) -> Any:
        if template == {"prompt": None}:  # {prompt} without quotes is YAML's {prompt: null}
            return "{prompt}"
        if isinstance(template, (dict, list)):
            raise ValueError("it must be quoted for YAML too: 'model.completions=\"{prompt}\"'")
        if isinstance(template, str) and template and "{prompt}" not in template:
            raise ValueError("the template must contain `{prompt}`")
        return template

    @field_validator("extra")
    @classmethod
    def _is_not_decided_elsewhere(cls, extra: dict[str, Any]) -> dict[str, Any]:
        decided = [f"{key} ({DECIDED[key]})" for key in extra if key in DECIDED]
        if decided:
            raise ValueError(f"must not contain what other keys decide: {', '.join(decided)}")
        try:
            json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"it must be JSON: {error}") from None
        return extra

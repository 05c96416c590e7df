"""What a server answers to a request for one completion, whatever it is."""

import json
from typing import Any, NamedTuple

FINISH = {
    **dict.fromkeys(("stop", "eos_token", "stop_sequence"), "stop"),
    **dict.fromkeys(("length", "max_tokens"), "length"),
}


class Failed(Exception):
    """A failure that may pass. wait: seconds that the server asks for."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class Odd(Failed):
    """The server is there, and answers something else than a completion."""


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


def parsed(content: bytes, *, chat: bool) -> Reply:
    """The first completion of an answer. Raises Odd where there is none."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise Odd(f"no JSON: {content[:2000].decode(errors='replace')}") from None
    odd = Odd(f"something else than a completion: {json.dumps(answer)[:2000]}")
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise odd
    first = choices[0]
    completed = None if chat or "message" in first else _text(first.get("text"))
    text = _message(first.get("message")) if chat else completed
    if text is None:
        raise odd
    finish, model = first.get("finish_reason"), answer.get("model")
    return Reply(
        text,
        _tokens(answer.get("usage")),
        FINISH.get(finish, "") if isinstance(finish, str) else "",
        model if isinstance(model, str) else "",
        len(choices),
        _logprobs(first.get("logprobs")),
    )


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

"""What a model is asked, in training and in evaluation: one definition for both. No torch."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from nemo_algos.findings import Section, validate
from nemo_algos.jsonl import read_object, replace

Messages = list[dict[str, str]]  # role: system, user or assistant; content
Asked = str | Messages  # of a row: a problem's text, or a conversation that the user ends


class Message(Section):
    role: Literal["system", "user", "assistant"]
    content: str


CHAT = TypeAdapter(list[Message])
FILE = "nemo_algos_prompt.json"  # in the folder of a trained model


class PromptSection(Section):
    """The conversation that a problem becomes."""

    prompt: str = "{problem}\n\nReason step by step, and put your final answer within \\boxed{}."
    """Template of the user's message; {problem} is replaced."""
    answer_prefix: str = ""
    """How the answer begins."""
    system_prompt: str = ""
    """System message, if the row's conversation has none."""

    def messages(self, asked: Asked) -> Messages:
        """The conversation that the model's answer follows."""
        *before, last = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        own = any(message["role"] == "system" for message in before)
        said = {"role": "user", "content": self.prompt.replace("{problem}", last["content"])}
        return [*([] if own else system), *before, said]

    def prefix(self, asked: Asked) -> str:
        """How the answer begins; the model goes on from there."""
        last = asked if isinstance(asked, str) else asked[-1]["content"]
        return self.answer_prefix.replace("{problem}", last)


class TrainedPrompt(PromptSection):
    """With the keys of the rows and the rewards' names: what lies beside a trained model."""

    input_key: str = "problem"
    output_key: str = "answer"
    rewards: list[str] = Field(default=[])

    def write(self, model: Path) -> None:
        """Into the model's folder."""
        replace(model / FILE, self.model_dump_json(indent=2))

    @classmethod
    def read(cls, model: Path) -> Self | None:
        """From a model's folder; None where it has none. Raises ValueError where it is broken."""
        path = model / FILE
        if path.is_file():
            return validate(cls, read_object(path), str(path))
        return None


def last_user_message(prompt: Asked) -> str:
    if isinstance(prompt, str):
        return prompt
    return prompt[-1]["content"]


def parse_question(value: Any, where: str) -> tuple[Asked, str | None]:
    """What a row's value asks, and the answer that its last message gives, if any.

    Raises ValueError with the place of what is no conversation.
    """
    if not isinstance(value, list):
        return ("" if value is None else str(value)), None
    try:
        chat = [message.model_dump() for message in CHAT.validate_python(value)]
    except ValidationError as error:
        at = ", ".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(
            f"{where} is not a valid conversation at {at}. Write a list of messages "
            '{"role": "system", "user" or "assistant", "content": text}.'
        ) from None
    answer = chat.pop()["content"] if chat and chat[-1]["role"] == "assistant" else None
    if not chat or chat[-1]["role"] != "user":
        raise ValueError(
            f"{where}: a conversation must end with a user message, or with the gold answer"
        )
    return chat, answer

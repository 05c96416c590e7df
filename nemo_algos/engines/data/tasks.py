"""Where prompts and rewards come from: as text, whatever model reads and writes it. No torch."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.prompts import Asked, Messages, last_user_message, parse_question
from nemo_algos.engines.data.puzzles import FAMILIES, Made
from nemo_algos.engines.data.rows import Row, after_hashes, load
from nemo_algos.engines.data.schema import DataSection, Split
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.weighted import Rewards
from nemo_algos.findings import did_you_mean

# ours by the short names that configs use; any other is a "module:NAME"
OURS = {
    **dict.fromkeys(FAMILIES, "nemo_algos.engines.data.tasks:Puzzles"),
    "math": "nemo_algos.engines.data.tasks:MathProblems",
}


class Response(str):
    """What a model has answered; tokens: how many of them it wrote."""

    tokens: int

    def __new__(cls, text: str, tokens: int) -> Self:
        response = super().__new__(cls, text)
        response.tokens = tokens
        return response


class Task(ABC):
    """Examples (of any type), their prompts, and verdicts on responses.

    `data.task: package.module:NAME` names a subclass of one's own.
    """

    def __init__(self, data: DataSection, seed: int) -> None:
        self.data = data
        self.seed = seed

    @abstractmethod
    def examples(self, step: int, number: int) -> list[Any]:
        """The `number` examples of a training step (from 0): the same whenever it is asked."""

    @abstractmethod
    def prompt(self, example: Any) -> Asked:
        """All that the user says, or a conversation: messages with role and content."""

    def answer(self, example: Any) -> str:
        """What data.rewards, or data.verifier, compare a response with."""
        raise NotImplementedError

    def row(self, example: Any) -> dict[str, Any]:
        """What reward functions see as `row`."""
        return {}

    @cached_property
    def rewards(self) -> Rewards:
        """Those of the config, for `verify`."""
        return Rewards(self.data.functions, self.data.verifier_workers)

    def verify(self, examples: list[Any], responses: list[Response]) -> list[Verdict]:
        """A verdict on each response, to the example in the same place: by the config's rewards."""
        return self.rewards.score(
            {
                "response": responses,
                "answer": [self.answer(e) for e in examples],
                "prompt": [last_user_message(self.prompt(e)) for e in examples],
                "row": [self.row(e) for e in examples],
                "tokens": [r.tokens for r in responses],
            }
        )

    def prefix(self, example: Any) -> str:
        """How the answer begins; the model goes on from there."""
        return ""

    turns = 0  # of the environment in a response, at most

    def reply(self, example: Any, response: str) -> str | None:
        """What the environment says after a response that may go on; None ends it.

        It is put as it is behind the response's tokens, whose end token stays; the model goes on
        from there, and is not trained on it.
        """
        return None

    def held_out(self, number: int) -> list[Any]:
        """Up to `number` examples to evaluate on, always the same."""
        return []

    def solution(self, example: Any, response: str) -> Hashable:
        """What is equal for two right responses that are the same solution."""
        return response

    def keep(self, fits: Callable[[Any], bool]) -> None:
        """Leave out the examples whose prompts are longer than data.max_input_seq_length."""
        raise ValueError(
            f"data.max_input_seq_length: {self.data.task} cannot skip long prompts. Remove it."
        )

    def counts(self) -> str:
        """What is said of the data as a run begins."""
        return self.data.task

    def close(self) -> None:
        if "rewards" in self.__dict__:
            self.rewards.close()


class Puzzles(Task):
    """A family of puzzles: reward 1 for a right response, else 0."""

    def examples(self, step: int, number: int) -> list[Made]:
        rng = random.Random(f"{self.seed} {step}")
        return [puzzles.sample(rng, self.data.rules)[0] for _ in range(number)]

    def held_out(self, number: int) -> list[Made]:
        return puzzles.held_out(number, self.data.rules)

    def prompt(self, example: Made) -> str:
        return f"{example} :"

    def verify(self, examples: list[Any], responses: list[Response]) -> list[Verdict]:
        verdicts = dict[tuple[Made, str], Verdict]()
        asked = [*zip(examples, responses, strict=True)]
        for example, response in asked:  # a taught model's responses are often the same
            if (example, response) not in verdicts:
                right = self.solution(example, response) is not None
                verdicts[example, response] = Verdict(float(right), "ok")
        return [verdicts[each] for each in asked]

    def solution(self, example: Made, response: str) -> Hashable:
        """See Task. None where the response is wrong."""
        tokens = countdown.tokens_of(response)
        return FAMILIES[self.data.rules.family].solution(example, tokens)


class Example(NamedTuple):
    """The problem's text, or the conversation that it ends; its gold answer; its row."""

    problem: Asked
    answer: str
    row: dict[str, Any]


def read(split: Split, section: str = "data.train") -> list[Example]:
    """Every row of the file; of a GSM8K answer, what follows `####`.

    Raises ValueError with the place of the first broken row, or where none has problem and answer.
    """
    rows, _ = load(split.data_path, subset=split.subset, split=split.split)
    examples = [_example(row, split, section) for row in rows]
    if not any(example.problem and example.answer for example in examples):
        raise ValueError(f"{split.data_path}: no row has both a problem and an answer")
    return examples


def _example(row: Row, split: Split, section: str) -> Example:
    if split.input_key not in row.values:
        raise _lacking(row, split, section)
    problem, said = parse_question(row.values[split.input_key], row.where)
    if said is None and split.output_key not in row.values:
        raise _lacking(row, split, section)
    answer = row.values.get(split.output_key, said)
    return Example(problem, after_hashes("" if answer is None else str(answer)), row.values)


def _lacking(row: Row, split: Split, section: str) -> ValueError:
    """All keys that the row does not have, each with the config's key that names it."""
    named = {"input_key": split.input_key, "output_key": split.output_key}
    absent = {name: key for name, key in named.items() if key not in row.values}
    keys = []
    for key in absent.values():
        keys.append(f"{key!r}{did_you_mean(key, list(row.values))}")
    cure = " and ".join(f"`{section}.{name}`" for name in absent)
    return ValueError(f"{row.where} has no key {' and no key '.join(keys)}. Set {cure}.")


class MathProblems(Task):
    """A task over files; training goes through its file in a new order every epoch.

    `dropped` counts rows without a problem or a gold answer, and prompts that are too long.
    Raises ValueError where a file is broken or nothing is left.
    """

    def __init__(self, data: DataSection, seed: int) -> None:
        super().__init__(data, seed)
        assert data.train is not None
        self.dropped = 0
        self.train = read(data.train)
        self.validation = data.validation and read(data.validation, "data.validation")
        self.keep(lambda example: bool(example.problem and example.answer))
        self.order = lru_cache(maxsize=2)(self._order)

    def keep(self, fits: Callable[[Any], bool]) -> None:
        self.train = self._kept(self.data.train, self.train, fits)
        self.validation = self._kept(self.data.validation, self.validation or [], fits)

    def _kept(
        self, split: Split | None, examples: list[Example], fits: Callable[[Any], bool]
    ) -> list[Example]:
        kept = [example for example in examples if fits(example)]
        self.dropped += len(examples) - len(kept)
        if split and not kept:
            raise ValueError(
                f"{split.data_path}: every prompt is longer than `data.max_input_seq_length: "
                f"{self.data.max_input_seq_length}`"
            )
        return kept

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.train)))
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        return order

    def examples(self, step: int, number: int) -> list[Example]:
        places = (divmod(i, len(self.train)) for i in range(step * number, (step + 1) * number))
        return [self.train[self.order(epoch)[i]] for epoch, i in places]

    def held_out(self, number: int) -> list[Example]:
        return (self.validation or [])[:number]

    def prompt(self, example: Example) -> Messages:
        return self.data.messages(example.problem)

    def prefix(self, example: Example) -> str:
        return self.data.prefix(example.problem)

    def answer(self, example: Example) -> str:
        return example.answer

    def row(self, example: Example) -> dict[str, Any]:
        return example.row

    def counts(self) -> str:
        dropped = f", {self.dropped} dropped (empty, or too long)" if self.dropped else ""
        return f"{len(self.train)} problems{dropped}"

"""Problems with answers from files. No torch."""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from nemo_algos.config import did_you_mean
from nemo_algos.engines.data.prompts import Asked, Messages, parse_question
from nemo_algos.engines.data.rows import Row, after_hashes, load
from nemo_algos.engines.data.schema import DataSection, Split
from nemo_algos.engines.data.tasks import Task


class Example(NamedTuple):
    """The problem's text, or the conversation that it ends; its gold answer; its row."""

    problem: Asked
    answer: str
    row: dict[str, Any]


def read(split: Split) -> list[Example]:
    """Every row of the file; of a GSM8K answer, what follows `####`.

    Raises ValueError with the place of the first broken row, or where none has problem and answer.
    """
    rows, _ = load(split.data_path, subset=split.subset, split=split.split)
    examples = [_example(row, split) for row in rows]
    if not any(example.problem and example.answer for example in examples):
        raise ValueError(f"{split.data_path}: no row has both a problem and an answer")
    return examples


def _example(row: Row, split: Split) -> Example:
    problem, said = parse_question(_field(row, "input_key", split.input_key), row.where)
    own = said is not None and split.output_key not in row.values
    answer = said if own else _field(row, "output_key", split.output_key)
    return Example(problem, after_hashes("" if answer is None else str(answer)), row.values)


def _field(row: Row, name: str, key: str) -> Any:
    if key not in row.values:
        hint = did_you_mean(key, list(row.values))
        raise ValueError(f"{row.where} has no key {key!r}{hint}. Set {name}.")
    return row.values[key]


class MathProblems(Task):
    """A task over files; training goes through its file in a new order every epoch.

    `dropped` counts rows without a problem or a gold answer, and prompts that are too long.
    Raises ValueError where a file is broken or nothing is left.
    """

    def __init__(self, data: DataSection, seed: int) -> None:
        super().__init__(data, seed)
        assert data.train is not None
        self.dropped = 0
        self.train, self.validation = read(data.train), data.validation and read(data.validation)
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
            limit = f"`data.max_input_seq_length: {self.data.max_input_seq_length}`"
            raise ValueError(f"{split.data_path}: every prompt is longer than {limit}")
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

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
    keys = [f"{key!r}{did_you_mean(key, list(row.values))}" for key in absent.values()]
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

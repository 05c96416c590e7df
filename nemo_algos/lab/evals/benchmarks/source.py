"""Where a benchmark's rows are beside files, and what its loader is given beside the rows."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.data.hub import rows_of
from nemo_algos.engines.data.prompts import TrainedPrompt
from nemo_algos.engines.data.puzzles import held_out
from nemo_algos.engines.data.rows import Row, number_rows

PUZZLES = 256


@dataclass(frozen=True)
class Options:
    """What a loader is given beside the rows.

    seed: of the options' order. folder: of the file read, for images. databases: folder of the
    SQLite files. counts: what a loader had to change or leave out, counted as it goes. trained: how
    the model was asked in training, where the benchmark's own prompt is not wanted.
    """

    seed: int = 0
    folder: Path = Path()
    databases: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    trained: TrainedPrompt | None = None

    def id_of(self, row: Row, place: int, *names: str) -> str:
        """The row's own id, else its place (from 0), counted."""
        own = row.get(*names)
        if own is None:
            self.counts["ids from the row number"] += 1
        return str(place if own is None else own)


def info_of(row: Row, *names: str) -> dict[str, str]:
    """Those of the fields that are there, which the report shows beside the problem."""
    return {name: str(row.get(name)) for name in names if row.get(name) is not None}


@dataclass(frozen=True)
class Hub:
    """A data set of the hub; the rows of several configs follow one another."""

    path: str
    split: str
    configs: tuple[str | None, ...] = (None,)

    def __str__(self) -> str:
        configs = [config for config in self.configs if config]
        return f"{self.path} {self.split}" + (f" ({', '.join(configs)})" if configs else "")

    def rows(self) -> tuple[list[Row], str]:
        """The rows, and "path split fingerprint:...". Raises ValueError where there are none."""
        rows, prints = list[Row](), list[str]()
        for config in self.configs:
            found, fingerprint = rows_of(self.path, config, self.split)
            rows += number_rows(found, f"{self.path} {config or ''}".strip())
            prints.append(fingerprint)
        return rows, f"{self} fingerprint:{'+'.join(prints)}"


@dataclass(frozen=True)
class Puzzles:
    """Countdown puzzles that the embedded engine holds out of training, always the same ones."""

    numbers: int

    def rows(self) -> tuple[list[Row], str]:
        """Their texts, and what they are."""
        puzzles = held_out(PUZZLES, Rules(self.numbers))
        rows = [Row({"puzzle": str(p)}, f"puzzle {i}") for i, p in enumerate(puzzles, 1)]
        return rows, f"held-out countdown puzzles of {self.numbers} numbers"

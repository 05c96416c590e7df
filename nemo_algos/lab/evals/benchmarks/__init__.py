"""Benchmarks by name: rows of a file or of the hub become problems with prompt and gold answer.

The table of all of them, with their fields, prompts and traps, is docs/benchmarks.md.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nemo_algos.config import did_you_mean
from nemo_algos.engines.data.prompts import TrainedPrompt
from nemo_algos.engines.data.rows import load as rows_of
from nemo_algos.lab.evals.benchmarks.registry import BENCHMARKS, Benchmark
from nemo_algos.lab.evals.benchmarks.source import Options
from nemo_algos.lab.evals.problem import Problem


@dataclass(frozen=True)
class Loaded:
    """A benchmark's problems, ids unique.

    counts: of all rows, also with a limit: what was changed, left out or is not scored as its
    authors do. source: the file and its SHA-256, or the data set and its fingerprint.
    """

    benchmark: Benchmark
    problems: list[Problem]
    counts: Counter[str]
    source: str


def load(
    name: str,
    data: str = "hub",
    *,
    seed: int = 0,
    databases: str = "",
    limit: int | None = None,
    trained: TrainedPrompt | None = None,
) -> Loaded:
    """The problems of the benchmark `name`, the first `limit` of them.

    data: "hub", a file, or for ACPBench and APPS a folder. seed: of the order of GPQA's options.
    databases: folder of the SQLite files of Spider and BIRD. trained: see Options.
    Raises ValueError: an unknown name, data that cannot be read, a row without its fields, an id
    twice, a limit below 1.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}{did_you_mean(name, sorted(BENCHMARKS))}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    benchmark = BENCHMARKS[name]
    path = Path(data)
    if benchmark.folders and path.is_dir():
        rows, source = benchmark.folders(data)
    elif data != "hub":
        rows, source = rows_of(data, benchmark.files)
    elif benchmark.hub:
        rows, source = benchmark.hub.rows()
    else:
        raise ValueError(f"{name} reads your own file. Set data to its path.")
    folder = path if path.is_dir() else path.parent
    options = Options(seed, folder, databases, trained=trained)
    problems = list(benchmark.problems(rows, options))
    if not problems:
        raise ValueError(f"{source}: none of its {len(rows)} rows belongs to {name}")
    ids = Counter(problem.id for problem in problems)
    twice = [name for name, number in ids.items() if number > 1]
    if twice:
        raise ValueError(
            f"ids must be unique, but {len(twice)} occur more than once, such as {twice[0]!r}"
        )
    texts = {(p.prompt, p.images, str(p.before)) for p in problems}
    options.counts["problems with the prompt of another"] += len(problems) - len(texts)
    return Loaded(benchmark, problems[:limit], +options.counts, source)

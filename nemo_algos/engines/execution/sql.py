"""The reward of a SQL query: whether its result on a SQLite database is the gold query's."""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from nemo_algos.engines.execution.code import blocks

SECONDS = 4.0  # of CPU time, for one query; below VerifierPool's default deadline
MAX_ROWS = 100_000
MAX_BYTES = 10_000_000  # of one value
STEPS = 1000  # of SQLite's machine, between two looks at the clock
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
ALLOWED |= {sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

Row = tuple[Any, ...]


def verify_sql(response: str, answer: str) -> float:
    """1.0 where the query in `response` gives the gold's result, else 0.0.

    `answer` is JSON: `database`, the path of a SQLite file; `query`, the gold; `rule`, "set" (the
    default), "bag" or "ordered", see `same`; and, if the default of 4 is wrong, `seconds` of CPU
    time for a query. The query is the response's last block marked sql, else its last block, else
    all of it.

    A query may read, within limits of time, rows and bytes; whatever else it tries makes it wrong.
    Some functions run long between two looks at the clock: run it in a `VerifierPool`.

    Raises ValueError where the gold cannot be run or the rule is unknown, TimeoutError where the
    query took too long, OSError where the file is no database, has no table, or misses changes that
    are beside it.
    """
    problem = json.loads(answer)
    database = problem["database"]
    seconds = problem.get("seconds", SECONDS)
    try:
        gold = _gold_rows(database, problem["query"], seconds)
    except (sqlite3.Error, TimeoutError) as error:
        raise ValueError(f"The gold query failed on {database}: {error!r}") from error
    try:
        given = _rows(database, sql_block(response), seconds)
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return 0.0
    return float(same(given, gold, problem.get("rule", "set")))


def sql_block(text: str) -> str:
    """The last fenced block marked sql, else the last block, else all of `text`."""
    found = blocks(text)
    marked = [query for mark, query in found if mark in ("sql", "sqlite")]
    return (marked or [query for _, query in found] or [text])[-1].strip()


def same(given: Sequence[Row], gold: Sequence[Row], rule: str) -> bool:
    """Whether two results are equal; values as Python compares them (1 == 1.0, NULL == NULL).

    set: the same rows, repeated or not, columns in order. bag: the same rows as often, for some
    order of the columns. ordered: the same rows in the same order, for some order of the columns.
    """
    if rule == "set":
        return set(given) == set(gold)
    if rule not in ("bag", "ordered"):
        raise ValueError(f"`rule` is {rule!r}. Choose set, bag or ordered.")
    if not given or not gold or len(given) != len(gold) or len(given[0]) != len(gold[0]):
        return not given and not gold
    columns = list(zip(*given, strict=True))
    targets = list(zip(*gold, strict=True))
    if rule == "ordered":
        return Counter(columns) == Counter(targets)
    return _some_order(columns, targets, [])


def _some_order(columns: list[Row], targets: list[Row], chosen: list[Row]) -> bool:
    # Column by column: what is chosen so far must be the same bag as the gold's first columns.
    wanted = zip(*targets[: len(chosen)], strict=True)
    if Counter(zip(*chosen, strict=True)) != Counter(wanted):
        return False
    return not columns or any(
        _some_order(columns[:i] + columns[i + 1 :], targets, [*chosen, column])
        for i, column in enumerate(columns)
        if column not in columns[:i]
    )


def _rows(database: str, query: str, seconds: float) -> list[Row]:
    end = time.thread_time() + seconds
    with closing(_open(Path(database).absolute())) as db:
        db.text_factory = lambda data: data.decode(errors="ignore")  # as Spider's evaluation
        db.execute("PRAGMA query_only = ON")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        db.set_authorizer(_authorize)
        db.set_progress_handler(lambda: time.thread_time() > end, STEPS)
        try:
            result = db.execute(query)
            rows = result.fetchmany(MAX_ROWS + 1)
        except sqlite3.OperationalError as error:
            if time.thread_time() > end:
                raise TimeoutError(f"the query used up its {seconds:g} s of CPU time") from error
            raise
    if result.description is None:  # an empty text or a comment runs, too
        raise ValueError("the response has no query")
    if len(rows) > MAX_ROWS:
        raise ValueError(f"the query returned more than {MAX_ROWS} rows")
    return rows


_gold_rows = lru_cache(maxsize=256)(_rows)


def _open(path: Path) -> sqlite3.Connection:
    """Raises OSError where the fault is the file's, and no query's."""
    for beside in (f"{path}-wal", f"{path}-journal"):
        if _begins(beside) not in (b"", b"\0"):
            raise OSError(
                f"{beside} has unsaved changes. Let SQLite write them to the database first."
            )
    try:
        # Immutable, because a database in WAL mode would have files written beside it.
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.Error as error:
        raise OSError(f"{path} cannot be read: {error}") from error
    if not tables:
        raise OSError(f"{path} has no table. Name another database.")
    return db


def _begins(path: str) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(1)
    return b""


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    allowed = action in ALLOWED and name != "load_extension"
    if allowed:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY

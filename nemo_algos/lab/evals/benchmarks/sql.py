"""Questions to a SQLite database, <databases>/<db_id>/<db_id>.sqlite: Spider and BIRD."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.problem import Options, Problem, info_of

PROMPT = (
    "A SQLite database has these tables:\n\n```sql\n{schema}\n```\n\n{question}\n\n"
    "Answer with one SQLite query in a ```sql block."
)
# for one query; 30 is BIRD's own limit
SPIDER_SECONDS = 5.0
BIRD_SECONDS = 30.0
NAME = re.compile(r"(?!\.)[^/\0]{1,200}")
EVIDENCE = "{question}\n\nEvidence: {evidence}"


def spider(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The gold is `query`. Rows count as often as they occur, in order if it has ORDER BY."""
    schemas = _schemas(rows, options)
    for place, row in enumerate(rows):
        query = row.text("query")
        question = row.text("question").strip()
        ordered = bool(re.search(r"\border\s+by\b", query, re.IGNORECASE))
        options.counts["queries with ORDER BY"] += ordered
        prompt = PROMPT.format(schema=schemas[row.text("db_id")], question=question)
        answer = _answer(row, query, "ordered" if ordered else "bag", SPIDER_SECONDS, options)
        yield Problem(str(place), prompt, answer, info=info_of(row, "db_id"))


def bird(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The gold is `SQL` or `sql`; evidence is shown. Rows are compared as sets."""
    schemas = _schemas(rows, options)
    for place, row in enumerate(rows):
        question = row.text("question").strip()
        evidence = str(row.get("evidence") or "").strip()
        options.counts["questions without evidence"] += not evidence
        if evidence:
            question = EVIDENCE.format(question=question, evidence=evidence)
        prompt = PROMPT.format(schema=schemas[row.text("db_id")], question=question)
        answer = _answer(row, row.text("SQL", "sql"), "set", BIRD_SECONDS, options)
        name = options.id_of(row, place, "question_id")
        yield Problem(name, prompt, answer, info=info_of(row, "db_id", "difficulty"))


def _answer(row: Row, query: str, rule: str, seconds: float, options: Options) -> str:
    path = str(_path(options.databases, row.text("db_id")).resolve())
    return json.dumps({"database": path, "query": query, "rule": rule, "seconds": seconds})


def _path(databases: str, name: str) -> Path:
    return Path(databases) / name / f"{name}.sqlite"


def _schemas(rows: list[Row], options: Options) -> dict[str, str]:
    """db_id -> its CREATE statements. Raises ValueError where any database is missing."""
    names = sorted({row.text("db_id") for row in rows})
    if odd := [name for name in names if not NAME.fullmatch(name)]:
        raise ValueError(
            f"the db_id {odd[0][:80]!r} must be a folder's name: at most 200 letters, and no /."
        )
    if not options.databases:
        raise ValueError(
            f"set `databases` to the folder of the {len(names)} SQLite files, "
            f"such as DATABASES/{names[0]}/{names[0]}.sqlite"
        )
    schemas = {name: _schema(_path(options.databases, name)) for name in names}
    missing = [name for name in names if not schemas[name]]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(names)} databases are missing in {options.databases}, or have "
            f"no table: {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Put each at "
            f"{_path(options.databases, '<db_id>')}."
        )
    return schemas


def _schema(path: Path) -> str:
    """Its CREATE TABLE statements in the order of creation, empty where there is no such file."""
    if not path.is_file():
        return ""
    tables = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            statements = database.execute(tables + "ESCAPE '\\' ORDER BY rowid").fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be read as a SQLite database: {error}") from None
    return "\n\n".join(f"{statement.strip()};" for (statement,) in statements)

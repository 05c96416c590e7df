"""verify_sql: which queries earn the reward, and what they may not do."""

import json
import sqlite3
from contextlib import closing

import pytest

from nemo_algos.engines.execution.sql import _rows, same, sql_block, verify_sql
from nemo_algos.engines.rewards import VerifierPool

SCHEMA = """
CREATE TABLE pets (name TEXT, age INTEGER, weight REAL);
INSERT INTO pets VALUES ('Rex', 3, 12.5), ('Tom', 3, 4.0), ('Ida', NULL, 4.0), ('Rex', 7, 30.0);
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("db") / "pets of ours?.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
    return path


def verify(database, given, gold, **more):
    return verify_sql(given, json.dumps({"database": str(database), "query": gold} | more))


@pytest.mark.parametrize(
    ("given", "gold", "set_", "bag", "ordered"),
    [
        ("SELECT name FROM pets", "SELECT name FROM pets", 1, 1, 1),
        ("SELECT DISTINCT name FROM pets", "SELECT name FROM pets", 1, 0, 0),
        ("SELECT name FROM pets ORDER BY 1", "SELECT name FROM pets ORDER BY 1 DESC", 1, 1, 0),
        ("SELECT age, name FROM pets", "SELECT name, age FROM pets", 0, 1, 1),
        ("SELECT name FROM pets LIMIT 3", "SELECT name FROM pets", 1, 0, 0),
        ("SELECT name FROM pets WHERE age = 3", "SELECT name FROM pets", 0, 0, 0),
        ("SELECT name, name FROM pets", "SELECT name FROM pets", 0, 0, 0),
        ("SELECT 3.0", "SELECT age FROM pets LIMIT 1", 1, 1, 1),
        ("SELECT '3'", "SELECT 3", 0, 0, 0),
        ("SELECT 0.1 + 0.2", "SELECT 0.3", 0, 0, 0),
        ("SELECT NULL", "SELECT age FROM pets WHERE name = 'Ida'", 1, 1, 1),
        ("SELECT 1 WHERE 0", "SELECT name FROM pets WHERE 0", 1, 1, 1),
        ("SELECT 1 WHERE 0", "SELECT name FROM pets", 0, 0, 0),
        ("-- nothing", "SELECT name FROM pets WHERE 0", 0, 0, 0),
        ("SELECT size FROM pets", "SELECT name FROM pets WHERE 0", 0, 0, 0),
        ("I do not know.", "SELECT name FROM pets WHERE 0", 0, 0, 0),
        ("", "SELECT name FROM pets WHERE 0", 0, 0, 0),
    ],
)
def test_rules(database, given, gold, set_, bag, ordered):
    rewards = [verify(database, given, gold, rule=rule) for rule in ("set", "bag", "ordered")]
    assert rewards == [set_, bag, ordered]
    assert verify(database, given, gold) == set_


def test_bag_needs_one_order_of_the_columns_for_all_rows():
    assert same([(1, 2), (2, 1)], [(2, 1), (1, 2)], "bag")
    assert not same([(1, 2), (1, 2)], [(1, 2), (2, 1)], "bag")
    # every column is there, and no order of them makes the rows
    assert not same([(1, 1), (2, 2)], [(1, 2), (2, 1)], "bag")
    assert same([(1, 5, 2), (1, 6, 3)], [(3, 1, 6), (2, 1, 5)], "bag")
    assert not same([(1, 5, 2), (1, 6, 3)], [(3, 1, 5), (2, 1, 6)], "bag")
    assert not same([(1, 2), (1, 2), (3, 4)], [(1, 2), (3, 4), (3, 4)], "bag")
    assert same([(1, 2), (1, 2), (3, 4)], [(1, 2), (3, 4), (3, 4)], "set")
    assert not same([(1, 5), (2, 6)], [(6, 2), (5, 1)], "ordered")
    assert same([(1, 5), (2, 6)], [(5, 1), (6, 2)], "ordered")


def test_sql_block():
    assert sql_block("a\n```sql\nSELECT 1;\n```\n```\nSELECT 2\n```\n") == "SELECT 1;"
    assert sql_block("```sql\nSELECT 1\n```\nbetter:\n```SQL\nSELECT 2\n```") == "SELECT 2"
    assert sql_block("```\nSELECT 1\n```\nor\n```\nSELECT 2") == "SELECT 2"
    assert sql_block(" SELECT 3\n") == "SELECT 3"
    assert sql_block("So: ```sql SELECT `a` FROM b``` does it.") == "SELECT `a` FROM b"
    assert sql_block("> ```sql\n> SELECT 7\n>\n> FROM t\n> ```\n> Done.") == "SELECT 7\n\nFROM t"


def test_gold_that_cannot_run_is_an_error(database):
    with pytest.raises(ValueError, match=r"no such column"):
        verify(database, "SELECT 1", "SELECT size FROM pets")
    with pytest.raises(OSError, match=r"other .*unable to open database file"):
        verify(database.with_name("other"), "SELECT 1", "SELECT 1")
    assert not database.with_name("other").exists()
    with pytest.raises(ValueError, match=r"sets.*bag"):
        verify(database, "SELECT 1", "SELECT 1", rule="sets")


@pytest.mark.parametrize("content", [b"", b"SELECT 1", b"SQLite format 3\0", bytes(4096)])
def test_file_that_is_no_database_is_an_error(tmp_path, content):
    path = tmp_path / "db"
    path.write_bytes(content)
    with pytest.raises(
        OSError, match=r"db .*(table|file is not a database|database disk image is malformed)"
    ):
        verify(path, "SELECT 1", "SELECT 1")


def journaled(path, mode):
    """A database in that mode, and a connection that keeps what is beside it there."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {mode}")
    db.executescript(SCHEMA)
    return db


def test_nothing_is_written_beside_a_database_in_wal_mode(tmp_path):
    path = tmp_path / "db"
    with closing(journaled(path, "WAL")) as db:
        with pytest.raises(OSError, match=r"db-wal .*SQLite"):
            verify(path, "SELECT 1", "SELECT 1")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert verify(path, "SELECT count(*) FROM pets", "SELECT 4") == 1.0
    before = path.read_bytes()
    assert before[18:20] == b"\2\2"  # WAL mode
    assert verify(path, "SELECT count(*) FROM pets", "SELECT 4") == 1.0
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)


def test_transaction_that_is_not_finished_is_an_error(tmp_path):
    path = tmp_path / "db"
    with closing(journaled(path, "PERSIST")) as db:
        assert path.with_name("db-journal").exists()
        assert verify(path, "SELECT count(*) FROM pets", "SELECT 4") == 1.0
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE pets SET name = hex(zeroblob(100000))")
        with pytest.raises(OSError, match=r"db-journal .*SQLite"):  # though the gold is known
            verify(path, "SELECT count(*) FROM pets", "SELECT 4")


def test_text_that_is_no_utf8_is_read(tmp_path):
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        db.execute("CREATE TABLE t AS SELECT CAST(x'41ff' AS TEXT) AS name")
        db.commit()
    assert verify(tmp_path / "db", "SELECT 'A'", "SELECT name FROM t") == 1.0


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
CROSS = "SELECT count(*) FROM " + ", ".join(f"pets p{i}" for i in range(40))
LATE = {"endless recursion": ENDLESS.format("max(i)"), "cross join": CROSS}
REFUSED = {
    "endless rows": ENDLESS.format("i"),
    "attach": "ATTACH 'FOLDER/new.sqlite' AS new",
    "vacuum into a file": "VACUUM INTO 'FOLDER/new.sqlite'",
    "pragma": "PRAGMA query_only = OFF",
    "pragma as a table": "SELECT * FROM pragma_database_list",
    "drop": "DROP TABLE pets",
    "delete": "DELETE FROM pets",
    "insert": "INSERT INTO pets VALUES ('Max', 1, 1.0)",
    "update, returning": "UPDATE pets SET age = 1 RETURNING name",
    "create": "CREATE TEMP TABLE t AS SELECT 1",
    "transaction": "BEGIN IMMEDIATE",
    "load_extension": "SELECT load_extension('FOLDER/evil')",
    "writefile": "SELECT writefile('FOLDER/file', 'x')",
    "readfile": "SELECT readfile('/etc/passwd')",
    "two statements": "SELECT name FROM pets; DROP TABLE pets",
    "giant blob": "SELECT zeroblob(2000000000)",
    "doubled text": "SELECT replace(hex(zeroblob(5000000)), '0', hex(zeroblob(5000000)))",
    "deep expression": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "nul": "SELECT 1 \0",
    "surrogate": "SELECT '\ud800'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_query_is_refused(database, name):
    before = database.read_bytes()
    query = REFUSED[name].replace("FOLDER", str(database.parent))
    assert verify(database, query, "SELECT name FROM pets") == 0.0
    assert database.read_bytes() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


def test_limits_of_bytes_and_rows(database):
    for size, reward in ((9_000_000, 1.0), (11_000_000, 0.0)):
        assert verify(database, f"SELECT length(zeroblob({size}))", f"SELECT {size}") == reward
    for rows, reward in ((100_000, 1.0), (100_001, 0.0)):
        assert verify(database, f"{ENDLESS.format(1)} LIMIT {rows}", "SELECT 1") == reward


@pytest.mark.parametrize("name", LATE)
def test_endless_query_is_late(database, name):
    with pytest.raises(TimeoutError):
        verify(database, LATE[name], "SELECT 1", seconds=0.2)


def test_the_clock_of_a_query_is_cpu_time(database, monkeypatch):
    clock = iter([0.0, *[0.2] * 50, 0.21, 0.21])
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        _rows(str(database), LATE["cross join"], 0.2)
    assert list(clock) == []


def test_pool_survives_hostile_queries(database):
    # One call of printf takes seconds and never looks at the clock; group_concat fills memory.
    bombs = ["SELECT printf('%.*c', 900000000, 'x')" + " || printf('%.*c', 900000000, 'y')" * 9]
    bombs += ["SELECT " + ", ".join(["zeroblob(9000000)"] * 1500)]
    answer = json.dumps({"database": str(database), "query": "SELECT 1", "seconds": 0.5})
    queries = ["SELECT 1", bombs[0], "SELECT 1", bombs[1], "SELECT 1"]
    with VerifierPool("nemo_algos.engines.execution.sql:verify_sql", deadline=1.0) as pool:
        verdicts = pool.score(queries, [answer] * 5)
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert {verdict.status for verdict in verdicts[::2]} == {"ok"}
    # which of the limits it meets first is a matter of the processor's speed
    assert {verdict.status for verdict in verdicts[1::2]} <= {"timeout", "memory", "ok"}

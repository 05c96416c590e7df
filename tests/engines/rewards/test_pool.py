"""VerifierPool: misbehaviour costs its own item only, is counted, and leaves no process behind."""

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import children, gone

from nemo_algos.engines.rewards import Verdict, VerifierPool
from nemo_algos.engines.rewards.pool import AHEAD

HERE = str(Path(__file__).parent)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture(scope="module")
def pool():
    with VerifierPool("hostile:act", deadline=5.0) as pool:
        yield pool


def act(pool, *names_and_arguments):
    return pool.score(*(list(column) for column in zip(*names_and_arguments, strict=True)))


def pid(pool):
    return int(act(pool, ("nap", "0"))[0].reward)


def test_scores_come_in_order_while_the_items_are_still_being_made():
    made = []

    def items():
        for i in range(3000):
            made.append(i)
            yield "echo"

    with VerifierPool("hostile:act", workers=2) as pool:
        verdicts = pool.scores(items(), (str(i / 8) for i in range(3000)))
        first = [next(verdicts) for _ in range(10)]
        assert first == [Verdict(i / 8, "ok") for i in range(10)]
        assert len(made) == AHEAD + 9
        assert [verdict.reward for verdict in verdicts] == [i / 8 for i in range(10, 3000)]
    assert pool.counts == Counter(ok=3000)


def test_scores_left_early_judge_no_more():
    with VerifierPool("hostile:act") as pool:
        verdicts = pool.scores(["echo"] + ["nap"] * 500, ["1"] + ["0.1"] * 500)
        assert next(verdicts) == Verdict(1.0, "ok")
        verdicts.close()
        assert sum(pool.counts.values()) < 500
        assert act(pool, ("echo", "0.5")) == [Verdict(0.5, "ok")]


def test_counts_of_concurrent_calls(pool):
    before = pool.counts["ok"]
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(act, pool, ("echo", str(i)), ("echo", "0")) for i in range(50)]
        assert [call.result()[0].reward for call in calls] == list(range(50))
    assert pool.counts["ok"] == before + 100


def test_starts_only_the_workers_that_are_needed():
    others = children()
    with VerifierPool("hostile:act", workers=2) as pool:
        assert children() == others
        first = pid(pool)
        assert pid(pool) == first
        assert children() - others == {first}
    assert children() == others


def test_workers_run_in_parallel(tmp_path):
    with VerifierPool("hostile:act", workers=2, deadline=60) as pool:
        verdicts = act(pool, *[("meet", str(tmp_path))] * 2)
    assert {str(int(verdict.reward)) for verdict in verdicts} == {*os.listdir(tmp_path)}


def test_clocks_of_an_item():
    with VerifierPool("hostile:act", deadline=60.0) as pool:
        cpu, wall = act(pool, ("clock", "ITIMER_PROF"), ("clock", "ITIMER_REAL"))
    assert 50 < cpu.reward < 70 and 500 < wall.reward < 700


def test_end_of_the_cpu_time_kills_the_worker_and_the_rest_goes_on():
    with VerifierPool("hostile:act", deadline=0.5) as pool:
        worker = pid(pool)
        # longer than the deadline, in wall time
        assert act(pool, ("nap", "0.8")) == [Verdict(worker, "ok")]
        verdicts = act(pool, ("echo", "0.25"), ("loop", ""), ("echo", "0.5"))
        assert pid(pool) != worker
        assert not Path(f"/proc/{worker}").exists()
        (ended,) = act(pool, ("end_by", "SIGPROF"))
    assert verdicts == [Verdict(0.25, "ok"), Verdict(0.0, "timeout"), Verdict(0.5, "ok")]
    assert (ended.status, ended.detail) == ("timeout", "it exceeded 0.5 s of CPU time")
    assert pool.counts == Counter(ok=5, timeout=2)


def test_wall_time_ends_what_waits_or_is_deaf():
    with VerifierPool("hostile:act", deadline=0.1) as pool:
        verdicts = act(pool, ("nap", "60"), ("deaf", ""))
    assert verdicts == [Verdict(0.0, "timeout")] * 2
    assert all(verdict.detail.endswith(" 1 s") for verdict in verdicts)


def test_deadline_kills_what_the_verifier_started(tmp_path):
    with VerifierPool("hostile:act", deadline=0.2) as pool:
        verdicts = act(pool, ("family", str(tmp_path / "pid")))
        assert verdicts == [Verdict(0.0, "timeout")]
        assert gone(int((tmp_path / "pid").read_text()))


def test_memory_limit():
    with VerifierPool("hostile:act", memory_mb=300) as pool:
        before = pid(pool)
        verdicts = act(pool, ("bomb", ""), ("echo", "1"))
        assert pid(pool) != before
    assert verdicts == [Verdict(0.0, "memory"), Verdict(1.0, "ok")]


@pytest.mark.parametrize(("name", "code"), [("leave", 3), ("segfault", -int(signal.SIGSEGV))])
def test_crash_is_an_error_of_its_item_only(pool, name, code):
    verdicts = act(pool, ("echo", "1"), (name, ""), ("echo", "0.5"))
    assert verdicts == [Verdict(1.0, "ok"), Verdict(0.0, "error"), Verdict(0.5, "ok")]
    assert f"exit code {code} " in verdicts[1].detail


def test_worker_that_died_while_idle_is_replaced(pool):
    victim = pid(pool)
    os.kill(victim, signal.SIGKILL)
    assert gone(victim)
    verdicts = act(pool, ("echo", "1"), ("echo", "0.5"))
    assert verdicts == [Verdict(0.0, "error"), Verdict(0.5, "ok")]


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("fail", "RuntimeError: why"),
        ("quit_python", "SystemExit: 0"),
        ("nothing", "TypeError"),
        ("nan", "ValueError: the function returned nan"),
    ],
)
def test_exception_is_an_error_and_keeps_the_worker(pool, name, detail):
    before = pid(pool)
    (verdict,) = act(pool, (name, "why"))
    assert verdict == Verdict(0.0, "error")
    assert verdict.detail.startswith(detail)
    assert pid(pool) == before


def test_output_of_a_verifier_does_not_reach_the_protocol(pool):
    verdicts = act(pool, ("shout", "0.25"), ("echo", "0.5"), ("listen", ""), ("echo", "0.75"))
    assert [verdict.reward for verdict in verdicts] == [0.25, 0.5, 0.0, 0.75]
    assert {verdict.status for verdict in verdicts} == {"ok"}


@pytest.mark.parametrize("text", ["\n\r\u2028", "\0", "\ud800", "\U0001d54f" * 20_000, ""])
def test_any_text_reaches_the_verifier_whole(pool, text):
    assert act(pool, ("codes", text)) == [Verdict(float(sum(map(ord, text))), "ok")]


def test_too_long_is_not_sent():
    with VerifierPool("hostile:act", max_chars=4) as pool:
        verdicts = pool.score(["echoo", "echo"], ["1", "1"])
    assert verdicts == [Verdict(0.0, "too_long"), Verdict(1.0, "ok")]
    assert pool.counts == Counter(ok=1, too_long=1)


def test_score_after_close_starts_again():
    with VerifierPool("hostile:act") as pool:
        first = pid(pool)
        pool.close()
        assert not Path(f"/proc/{first}").exists()
        assert pid(pool) != first


def test_workers_do_not_import_torch(pool):
    assert act(pool, ("torch_loaded", "")) == [Verdict(0.0, "ok")]


@pytest.mark.parametrize(
    ("verify", "reason"),
    [
        ("nowhere:verify", "ModuleNotFoundError: No module named 'nowhere'"),
        ("hostile:missing", "AttributeError: module 'hostile' has no attribute 'missing'"),
    ],
)
def test_verifier_that_does_not_load_is_reported(verify, reason):
    with VerifierPool(verify, workers=2) as pool, pytest.raises(ValueError, match=reason):
        pool.score(["a"] * 100, ["b"] * 100)


def test_lists_of_different_lengths_are_refused(pool):
    with pytest.raises(ValueError, match="2 responses but 1 answers"):
        pool.score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="shorter"):
        list(pool.scores(["echo", "echo"], ["1"]))


@pytest.mark.parametrize("stuck", [False, True])
def test_no_worker_survives_the_death_of_the_parent(stuck):
    script = f"""
import os, signal, sys, threading
sys.path.insert(0, {HERE!r})
from nemo_algos.engines.rewards import VerifierPool
pool = VerifierPool("hostile:act", deadline=0.5)
print(int(pool.score(["nap"], ["0"])[0].reward), flush=True)
if {stuck}:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    pool.score(["loop"], [""])
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run(
        [sys.executable, "-c", script], check=False, stdout=subprocess.PIPE, text=True
    )
    assert parent.returncode == -signal.SIGKILL
    worker = int(parent.stdout)
    assert worker > 0 and gone(worker)


def test_a_verifiers_own_timeout_is_a_timeout(pool):
    before = pid(pool)
    verdicts = act(pool, ("own_clock", "late"), ("echo", "1"))
    assert verdicts == [Verdict(0.0, "timeout"), Verdict(1.0, "ok")]
    assert verdicts[0].detail == "late"
    assert pid(pool) == before

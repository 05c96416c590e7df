"""No response hangs, crashes or exhausts verify_math in a pool, or leaves a process behind.

Of the slow ones one, with a short deadline, and by default each third of the others; all of them
with the real one, and 100,000 verifications: benchmarks/math_verifier.py.
"""

import sys
from collections import Counter

import pytest
from hostile_answers import HOSTILE, SLOW
from processes import children

from nemo_algos.engines.rewards import Verdict, VerifierPool

VERIFIER = "nemo_algos.engines.rewards.math:verify_math"
ENDLESS = ["three factorials", "sum to a trillion"]  # a worker starts anew after each
QUICK = [name for name in HOSTILE if name not in SLOW]
TOLD = ["two megabytes", "a megabyte in a box", "a megabyte of boxes", "NUL", "lone surrogates"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.fixture(scope="module")
def others():
    """The processes from before."""
    return children()


@pytest.fixture(scope="module")
def pool(others):
    """Its workers are started anew after a timeout only: a start takes seconds."""
    with VerifierPool(VERIFIER, workers=2, deadline=1.0) as pool:
        yield pool


@pytest.fixture(
    scope="module",
    params=[
        [*QUICK[::3], *TOLD, ENDLESS[0]],
        pytest.param([*QUICK, *ENDLESS], marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def judged(pool, request):
    names = [*dict.fromkeys(request.param)]
    ordinary = [r"\boxed{7}", r"\boxed{3}", r"\boxed{\frac{14}{2}}"]
    responses = [*(HOSTILE[name] for name in names), *ordinary]
    before = pool.counts.copy()
    verdicts = pool.score(responses, ["7"] * len(responses))
    return dict(zip([*names, *ordinary], verdicts, strict=True)), pool.counts - before


def test_every_hostile_response_is_judged_and_counted(judged):
    verdicts, counts = judged
    assert verdicts.pop(r"\boxed{7}") == verdicts.pop(r"\boxed{\frac{14}{2}}") == Verdict(1.0, "ok")
    assert verdicts.pop(r"\boxed{3}") == Verdict(0.0, "ok")
    assert {verdict.reward for verdict in verdicts.values()} == {0.0}
    assert counts == Counter(verdict.status for verdict in verdicts.values()) + Counter(ok=3)
    assert set(counts) == {"ok", "timeout", "too_long"}


def test_which_end_at_the_deadline_and_which_before_they_are_read(judged):
    verdicts, _ = judged
    assert {verdicts[name].status for name in ENDLESS if name in verdicts} == {"timeout"}
    assert {name for name in TOLD if verdicts[name].status == "too_long"} == {"two megabytes"}
    assert {verdicts[name].status for name in TOLD} == {"too_long", "ok"}


@pytest.mark.long
def test_memory_limit():
    """math-verify catches the MemoryError of what it evaluates, and finds the answer wrong."""
    responses = [HOSTILE["root of a huge degree"], r"\boxed{7}"]
    with VerifierPool(VERIFIER, memory_mb=250, deadline=30) as pool:
        verdicts = pool.score(responses, ["7", "7"])
    assert verdicts[0].reward == 0 and verdicts[0].status in ("ok", "memory")
    assert verdicts[1] == Verdict(1.0, "ok")


def test_many_verifications_leave_no_process_and_start_no_more_than_the_workers(
    pool, others, judged
):
    """Also where hostile responses came before."""
    before = pool.counts.copy()
    verdicts = pool.scores((rf"\boxed{{{i}}}" for i in range(200)), map(str, range(200)))
    assert sum(verdict.reward for verdict in verdicts) == 200
    assert pool.counts - before == Counter(ok=200)
    assert len(children() - others) == 2
    pool.close()
    assert children() == others

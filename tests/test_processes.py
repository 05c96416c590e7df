"""What computes beside us ends with us, however we end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "nemo_algos"
OWN = {"processes.py", "engines/rewards/pool.py", "engines/local/manifest.py"}
OWN |= {"preflight/forecast/template.py"}
FRESH = """
import os, signal, time
from nemo_algos.processes import fresh
processes = fresh(1)
child = processes.submit(os.getpid).result()
processes.submit(time.sleep, 600)
"""
POOL = """
import os, signal
from nemo_algos.engines.rewards import VerifierPool
pool = VerifierPool("operator:eq")
pool.score(["1"], ["1"])
child = pool._idle.get()._popen.pid
"""
SANDBOX = """
import os, signal
from nemo_algos.engines.execution.sandbox.program import Sandbox
sandbox = Sandbox()
child = sandbox._process.pid
"""
KILLED = "print(child, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"


def test_processes_begin_in_these_files_alone():
    begun = ("ProcessPoolExecutor", "multiprocessing", "subprocess.", "os.fork")
    ours = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py")}
    found = {p for p in ours if any(word in (PACKAGE / p).read_text() for word in begun)}
    rest = (
        "preflight/slurm/",
        "preflight/check/data/",
        "engines/execution/sandbox/",
        "cli/slurm.py",
    )
    assert {p for p in found if not p.startswith(rest)} == OWN


@pytest.mark.parametrize("program", [FRESH, POOL, SANDBOX])
def test_they_end_where_we_are_killed(program):
    with subprocess.Popen([sys.executable, "-c", program + KILLED], stdout=subprocess.PIPE) as ours:
        assert ours.stdout
        child = int(ours.stdout.readline())  # not to its end, which a child left over would hold
        assert ours.wait() == -signal.SIGKILL
    for _ in range(3000):  # a minute, of which some milliseconds are needed
        if not _runs(child):
            return
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    pytest.fail(f"{child} runs on")


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # a zombie has ended
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"

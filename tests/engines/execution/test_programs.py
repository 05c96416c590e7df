"""Programs that attack the machine, fake a pass or are as people write them, in every situation."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hostile_programs import (
    ALL_HARM,
    ENDLESS,
    FAKES,
    HARMFUL,
    HARMLESS,
    HELPER,
    HOSTILE,
    LATE,
    LIARS,
    SORT_TESTS,
)
from processes import descendants, gone, of_user
from situations import SITUATIONS, USER, Judge, outcome, reward

from nemo_algos.engines.execution.code import verify_code
from nemo_algos.engines.execution.sandbox import Handle, Sandbox, lockdown, program
from nemo_algos.engines.rewards import VerifierPool


@pytest.fixture(scope="module", params=SITUATIONS)
def judge(request):
    """A judge in each situation that this machine and user can be brought into."""
    as_root, refused = SITUATIONS[request.param]
    if as_root and os.getuid() != 0:
        pytest.skip("only root can be root")
    judge = Judge(request.param)
    words = "; ".join(judge.protections)
    if not refused and "namespaces" not in words:
        pytest.skip("this system refuses namespaces")
    if "system calls" not in words:
        pytest.skip("this kernel has no filters, and the programs would do what they try")
    assert ("namespaces" in words) == (not refused)
    assert ("Landlock" in words) <= ("landlock_create_ruleset" not in refused)
    assert ("user" in words) == as_root
    yield judge
    judge.close()


AGES = 600.0  # of wall time, for what must not depend on it

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the protections are Linux's")


@pytest.fixture(scope="module")
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture(scope="module")
def folder():
    """A folder, a file and a socket in it, which all users may use, and which are the judge's."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own are closed to others
    (folder / "theirs").write_text("kept")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(f"{folder}/datagram")
        for path in (folder, *folder.iterdir()):
            path.chmod(0o777)
            if os.getuid() == 0:
                os.chown(path, USER, USER)
        datagrams.setblocking(False)
        yield folder
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
    shutil.rmtree(folder)


def state(folder, process):
    """All that a program could have changed of `folder` and of a process."""
    paths = [folder, *sorted(folder.iterdir())]
    stats = [path.stat() for path in paths]
    files = [(s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_nlink) for s in stats]
    attributes = [os.listxattr(path) for path in paths]
    limits = Path(f"/proc/{process}/limits").read_text()
    nice, policy = os.getpriority(os.PRIO_PROCESS, process), os.sched_getscheduler(process)
    return paths, files, attributes, limits, nice, policy, os.sched_getaffinity(process)


def filled(source, server, folder, judge):
    facts = {"PORT": server.getsockname()[1], "FOLDER": folder, "JUDGE": judge.pid}
    for word, fact in facts.items():
        source = source.replace(word, str(fact))
    return source


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_is_contained(judge, server, folder, name):
    source, stopped = HOSTILE[name]
    before = state(folder, judge.pid)
    processes = descendants(judge.ask("zygote"))
    seconds = 0.2 if LATE in stopped else 60.0
    assert judge.ask("outcome", filled(source, server, folder, judge), seconds, AGES) in stopped
    assert descendants(judge.ask("zygote")) == processes
    assert state(folder, judge.pid) == before
    assert judge.ask("outcome", "def f(x): return x + 1", 60.0, AGES) == HARMLESS


def test_harm_is_refused(judge, server, folder):
    before = state(folder, judge.pid)
    assert len(HARMFUL) > 20
    source = filled(ALL_HARM, server, folder, judge)
    assert judge.ask("outcome", source, 60.0, AGES) == HARMLESS
    assert state(folder, judge.pid) == before
    with pytest.raises(BlockingIOError):
        server.accept()


def test_what_of_other_files_is_seen(judge, folder):
    """Nothing in namespaces; else names and times; what is in them only without Landlock."""
    words = "; ".join(judge.protections)
    where = f"import os\nFILE = '{folder}/theirs'\n"
    seen = judge.ask("outcome", f"{where}def f(x): os.stat(FILE); return x + 1", 60.0, AGES)
    read = judge.ask("outcome", f"{where}def f(x): open(FILE).read(); return x + 1", 60.0, AGES)
    listed = judge.ask("outcome", f"{where}def f(x): os.listdir('/etc'); return x + 1", 60.0, AGES)
    if "namespaces" in words:
        assert [seen, read, listed] == ["FileNotFoundError"] * 3
    elif "Landlock" in words:
        assert [seen, read, listed] == [HARMLESS, "PermissionError", "PermissionError"]
    else:
        assert [seen, read, listed] == [HARMLESS] * 3


@pytest.mark.parametrize("name", ENDLESS)
def test_which_clock_ends_an_endless_program(name, monkeypatch):
    monkeypatch.setattr(program, "PATIENCE", program.PATIENCE)  # `outcome` changes it
    source, stopped = ENDLESS[name]
    seconds, wall = (0.2, AGES) if LATE in stopped else (AGES, 0.3)
    assert outcome(source, seconds, wall) in stopped


def test_new_namespaces(judge):
    # none of this is Landlock's doing: it hides no path
    if "namespaces" not in "; ".join(judge.protections):
        return
    source = """
import os
def f(x):
    paths = [path for path in ("/etc", "/proc", "/home", "/tmp", "/root") if os.path.exists(path)]
    return 2 if os.getppid() == 1 and os.getcwd() == "/" and set(paths) <= {HOME} else paths
"""
    home = {f"/{sys.base_prefix.split('/')[1]}"}  # the interpreter's, in which nothing else is
    assert judge.ask("outcome", source.replace("{HOME}", repr(home)), 60.0, AGES) == HARMLESS
    (zygote,) = descendants(judge.ask("zygote"))
    if os.getuid() == 0:  # others may not look
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "uts"):
            here, there = (os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (os.getpid(), zygote))
            assert (here != there) == (kind != "cgroup"), kind


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives programs a user of their own")
@pytest.mark.parametrize("namespaces", [True, False])
def test_program_is_a_user_of_its_own_and_of_nobody_else(namespaces):
    sandbox = Sandbox(namespaces)
    with sandbox.program(60.0) as running:
        running.run(["import os\ndef f(): return os.getresuid() + os.getresgid(), os.getgroups()"])
        ids, groups = running.ask("call", Handle(running, "f"))
        assert len(set(ids)) == 1 and ids[0] > 1 << 16 and groups == []
        assert len(of_user(ids[0])) == 1
    assert of_user(ids[0]) == []
    sandbox.close()


def test_nobody_in_a_container_of_few_users(monkeypatch):
    assert lockdown._nobody(1) is None  # of root alone
    assert 61_440 <= lockdown._nobody(65_536) < 65_534
    last = 65_535 - os.getpid() % 4096
    monkeypatch.setattr(lockdown, "_named", lambda user: user > last - 3)
    assert lockdown._nobody(65_536) == last - 3


def test_root_that_is_the_only_user():
    """As in a container that maps root to the user who starts it."""
    script = """
import ctypes, os
from pathlib import Path
user, group = os.getuid(), os.getgid()
if ctypes.CDLL(None).unshare(0x10000000):
    raise SystemExit("refused")
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"0 {user} 1")
Path("/proc/self/gid_map").write_text(f"0 {group} 1")
from nemo_algos.engines.execution.sandbox import Handle, Sandbox
for namespaces in (True, False):
    sandbox = Sandbox(namespaces)
    assert "a user of its own" not in sandbox.protections
    with sandbox.program(60.0) as program:
        program.run(["import os\\ndef f(): return os.getuid()"])
        print(program.ask("call", Handle(program, "f")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if "refused" in done.stderr:
        pytest.skip("this system refuses namespaces of users")
    assert done.stdout == "0\n0\n", done.stderr


def run_in_one_process(program, tests, prompt=""):
    """The exit code of program and tests, run as most harnesses do."""
    source = "\n".join([prompt, program, tests])
    return subprocess.run([sys.executable, "-c", source], capture_output=True).returncode


@pytest.mark.parametrize("name", FAKES)
def test_fake_pass_earns_nothing(name):
    program, tests = FAKES[name]
    assert run_in_one_process(program, tests, HELPER) == 0
    answer = json.dumps({"prompt": HELPER, "entry_point": "f", "tests": tests})
    assert verify_code(program, answer) == 0.0
    assert verify_code("def f(x): return 1 + x", answer) == float(name != "ends the loop")


@pytest.mark.parametrize("name", LIARS)
def test_only_a_call_changes_its_arguments(name):
    program, tests = LIARS[name]
    answer = json.dumps({"prompt": "", "entry_point": "f", "tests": tests})
    assert verify_code(program, answer) == 0.0
    answer = json.dumps({"prompt": "", "entry_point": "f", "tests": SORT_TESTS})
    assert verify_code("def f(xs): return sorted(xs)", answer) == 1.0


def test_program_cannot_be_traced(judge):
    # nor its parent, whose state it inherits
    source = "import ctypes\ndef f(x): return 2 + ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    assert judge.ask("outcome", source, 60.0, AGES) == HARMLESS


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_what_is_mounted_beneath_is_read_only():
    script = """
import ctypes
from nemo_algos.engines.execution.sandbox import Handle, Sandbox
libc = ctypes.CDLL(None)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 16384 | (1 << 18), None):
    raise SystemExit("refused")
assert libc.mount(b"none", b"/usr/share", b"tmpfs", 0, None) == 0
with Sandbox().program(5.0) as program:
    program.run(["import os\\ndef f(path): return os.statvfs(path).f_flag & 7"])
    print([program.ask("call", Handle(program, "f"), path) for path in ("/usr", "/usr/share")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if "refused" in done.stderr:
        pytest.skip("this system refuses mounts")
    assert done.stdout == "[7, 7]\n", done.stderr


def test_pool_survives_hostile_programs():
    answer = json.dumps({"prompt": "", "entry_point": "f", "tests": "assert f(1) == 2"})
    good = "def f(x): return x + 1"
    names = [
        "leaves",
        "segmentation fault",
        "kills everything",
        "huge answer",
        "daemon that outlives",
    ]
    programs = [good]
    for name in names:
        programs += [HOSTILE[name][0].replace("JUDGE", "os.getppid()"), good]
    with VerifierPool("nemo_algos.engines.execution.code:verify_code") as pool:
        verdicts = pool.score(programs, [answer] * len(programs))
    assert [verdict.reward for verdict in verdicts[::2]] == [1.0] * 6
    assert {verdict.status for verdict in verdicts} == {"ok"}
    rewards = dict(zip(names, [verdict.reward for verdict in verdicts[1::2]], strict=True))
    assert rewards == dict.fromkeys(names, 0.0) | {"kills everything": 1.0}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("namespaces", [True, False])
def test_program_ends_with_its_judge(number, namespaces):
    script = f"""
import os, time
from nemo_algos.engines.execution.sandbox import Sandbox
sandbox = Sandbox({namespaces})
with sandbox.program(60.0) as program:
    print(sandbox._process.pid, flush=True)
    program.run(["import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(60)"])
"""
    judge = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert judge.stdout
    zygote = int(judge.stdout.readline())
    family = [zygote, *descendants(zygote)]
    assert len(family) >= 2
    os.killpg(judge.pid, number)  # as the pool does
    judge.communicate()
    assert all(gone(pid) for pid in family)


# name: (program, tests)
ORDINARY = {
    name: tuple(both.split("\n---\n"))
    for text in Path(__file__).with_name("ordinary_programs.txt").read_text().split("=== ")[1:]
    for name, both in [text.split("\n", 1)]
}
# Of a second of CPU time, or much memory, which takes longer on a busy machine.
LARGE = {
    "half a gigabyte": "def f(): return len(bytearray(500 << 20)) == 500 << 20",
    "half a gigabyte of ones": "def f(): return (b'1' * (500 << 20)).count(b'1') == 500 << 20",
    "ten million numbers": "def f(): return sum(list(range(10**7))[-2:]) == 2 * 10**7 - 3",
    "a second": "import time\ndef f():\n    while time.process_time() < 1: pass\n    return True",
}


def test_ordinary_programs_pass(judge):
    assert len(ORDINARY) >= 65
    earned = {name: judge.ask("reward", *given) for name, given in ORDINARY.items()}
    assert earned == dict.fromkeys(ORDINARY, 1.0)


@pytest.mark.parametrize("name", LARGE)
def test_large_programs_pass(name):
    assert reward(LARGE[name], "assert f() is True") == 1.0

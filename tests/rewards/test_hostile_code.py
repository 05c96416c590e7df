"""Programs that attack the machine or fake a pass: hostile_programs.py lists them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile_programs import FAKES, HARMLESS, HELPER, HOSTILE, LATE, LIARS, SORT_TESTS

from nemo_algos.rewards import VerifierPool
from nemo_algos.rewards.code import verify_code
from nemo_algos.rewards.sandbox import Handle, Sandbox
from nemo_algos.rewards.sandbox.lockdown import FIRST_USER

# What a program of the same user could do to this very session is tried only where it is stopped.
NEEDS = {
    "kills everything": ("namespaces", "user of its own", "signals"),
    "kills the judge": ("namespaces", "user of its own", "signals"),
    "deletes files": ("namespaces", "Landlock: files"),
    "follows a link": ("namespaces", "user of its own", "Landlock: files"),
    "connects": ("namespaces", "TCP"),
    **dict.fromkeys(("shared memory", "queues and keys", "calls the host"), ("system calls",)),
}


@pytest.fixture(scope="module", params=[True, False], ids=["namespaces", "plain"])
def sandbox(request):
    sandbox = Sandbox(namespaces=request.param)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def folder(tmp_path_factory):
    # Open to every user, so that not its permissions are what stops a program.
    folder = tmp_path_factory.mktemp("open")
    (folder / "theirs").write_text("kept")
    for path in (folder, folder / "theirs"):
        path.chmod(0o777)
    return folder


def descendants(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return children + [pid for child in children for pid in descendants(child)]


def of_user(user):
    """The processes of that user."""
    return [path for path in Path("/proc").glob("[0-9]*") if owner(path) == user]


def owner(path):
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None


def outcome(sandbox, source, seconds):
    with sandbox.program(seconds) as program:
        try:
            program.run([source])
            answer = program.ask("call", Handle(program, "f"), 1)
        except Exception as error:
            return program.failure or type(error).__name__
        return HARMLESS if answer == 2 else f"answered {answer!r}"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_is_contained(sandbox, server, folder, name):
    protections = "; ".join(sandbox.protections)
    if not any(words in protections for words in NEEDS.get(name, ("",))):
        pytest.skip(f"nothing here stops it: {protections}")
    source, stopped = HOSTILE[name]
    facts = {"PORT": server.getsockname()[1], "FOLDER": folder, "JUDGE": os.getpid()}
    for word, fact in facts.items():
        source = source.replace(word, str(fact))
    processes = descendants(sandbox._process.pid)
    assert outcome(sandbox, source, 0.4 if LATE in stopped else 5.0) in stopped
    assert descendants(sandbox._process.pid) == processes
    assert [path.name for path in folder.iterdir() if path.stat().st_size] == ["theirs"]
    assert outcome(sandbox, "def f(x): return x + 1", 5.0) == HARMLESS


def test_new_namespaces():
    # none of this is Landlock's doing: it hides no path and no interface
    source = """
import os, socket
def f(x):
    paths = [path for path in ("/etc", "/proc", "/home", "/tmp", "/root") if os.path.exists(path)]
    return os.getpid() < 9, [name for _, name in socket.if_nameindex()], paths, os.getcwd()
"""
    sandbox = Sandbox()
    if "namespaces" not in "; ".join(sandbox.protections):
        pytest.skip("this system refuses namespaces")
    with sandbox.program(5.0) as program:
        program.run([source])
        near, interfaces, paths, folder = program.ask("call", Handle(program, "f"), 1)
    sandbox.close()
    home = [f"/{sys.base_prefix.split('/')[1]}"]  # the interpreter's, in which nothing else is
    assert (near, interfaces, folder) == (True, ["lo"], "/")
    assert set(paths) <= set(home)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives programs a user of their own")
def test_program_is_a_user_of_its_own(sandbox):
    user = FIRST_USER + sandbox._process.pid % 4096
    assert of_user(user) == []
    with sandbox.program(5.0) as program:
        program.run(["1"])
        assert len(of_user(user)) == 1
    assert of_user(user) == []


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


def test_program_cannot_be_traced(sandbox):
    # nor its parent, whose state it inherits
    source = "import ctypes\ndef f(x): return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    with sandbox.program(5.0) as program:
        program.run([source])
        assert program.ask("call", Handle(program, "f"), 1) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_what_is_mounted_beneath_is_read_only():
    script = """
import ctypes
from nemo_algos.rewards.sandbox import Handle, Sandbox
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
    with VerifierPool("nemo_algos.rewards.code:verify_code") as pool:
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
from nemo_algos.rewards.sandbox import Sandbox
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
    end = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < end:
        time.sleep(0.01)
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]

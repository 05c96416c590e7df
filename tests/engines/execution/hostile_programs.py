"""Programs that attack the machine, and programs that fake a pass.

In HOSTILE and ENDLESS each `f` does harm and then answers x + 1, as asked: what it answers instead
is how it was stopped. PORT, FOLDER and JUDGE are filled in: a listening socket, a folder that all
may write, the judge's process. FAKES pass where tests run in the program's own process, without
solving it.
"""

# name: (source, how it may be stopped: a raised class, a failure of a Program, or "harmless": runs)
LATE, STUCK, GONE, BROKEN, HARMLESS = "late", "stuck", "gone", "broken", "harmless"
REFUSED = {"PermissionError", "FileNotFoundError"}


# Those that outwit a clock: LATE by their CPU time, STUCK by wall time.
ENDLESS = {
    "infinite loop": ("def f(x):\n    while True: pass", {LATE}),
    "infinite loop on import": ("while True: pass", {LATE}),
    "sleep": ("import time\ndef f(x): time.sleep(60); return x + 1", {STUCK}),
    "sleeps in short pieces": (
        "import time\ndef f(x):\n    while True: time.sleep(0.001)",
        {STUCK},
    ),
    "waits for itself": ("import queue\ndef f(x): return queue.Queue().get()", {STUCK}),
    "stops its clock": (
        """
import signal
signal.setitimer(signal.ITIMER_PROF, 0)
signal.signal(signal.SIGPROF, signal.SIG_IGN)
def f(x):
    while True: pass
""",
        {LATE},
    ),
    "computes between the clock's ticks": (
        """
import time
def f(x):
    while True:
        end = time.perf_counter() + 0.0004
        while time.perf_counter() < end: pass
        time.sleep(0.0001)
""",
        {LATE, STUCK},
    ),
    "answers late": (
        """
import signal, time
signal.signal(signal.SIGPROF, signal.SIG_IGN)
def f(x):
    while time.process_time() < 0.3: pass
    return x + 1
""",
        {LATE},
    ),
    "deaf to signals": (
        """
import signal, time
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
def f(x):
    while True: time.sleep(60)
""",
        {STUCK},
    ),
}

HOSTILE = {
    "memory bomb": (
        "def f(x):\n    hoard = []\n    while True: hoard.append(bytearray(1 << 26))",
        {"CandidateError", LATE},
    ),
    "2 GiB at once": ("def f(x): bytearray(2 << 30); return x + 1", {"CandidateError"}),
    "endless recursion": ("def f(x): return f(x)", {"RecursionError"}),
    "stack overflow in C": (
        "import sys\nsys.setrecursionlimit(1 << 30)\n"
        "class Deep:\n    def __repr__(self): return repr(self)\ndef f(x): return repr(Deep())",
        {GONE},
    ),
    "fork bomb": (
        """
import os
def f(x):
    while True:
        try: os.fork()
        except OSError: pass
""",
        {LATE},
    ),
    "daemon that outlives": (
        """
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(60)
        os._exit(0)
    return x + 1
""",
        REFUSED,
    ),
    "threads": (
        "import threading\ndef f(x): threading.Thread(target=print).start(); return x + 1",
        {"RuntimeError"},
    ),
    "subprocess": ("import subprocess\ndef f(x): subprocess.run(['id']); return x + 1", REFUSED),
    "becomes another program": (
        "import os\ndef f(x): os.execv('/bin/sleep', ['sleep', '60'])",
        REFUSED,
    ),
    "writes a file": (
        "def f(x):\n    with open('FOLDER/file', 'w') as file: file.write('1')\n    return x + 1",
        REFUSED | {"OSError"},
    ),
    "fills the disk": (
        "def f(x):\n    with open('disk', 'wb') as file:\n"
        "        while True: file.write(bytes(1 << 20))",
        REFUSED | {"OSError"},
    ),
    "reads the passwords": ("def f(x): open('/etc/shadow').read(); return x + 1", REFUSED),
    "follows a link": (
        "import os\ndef f(x):\n    os.symlink('/etc/shadow', 'FOLDER/link')\n"
        "    open('FOLDER/link').read()\n    return x + 1",
        REFUSED | {"OSError"},
    ),
    "connects": (
        "import socket\ndef f(x): socket.create_connection(('127.0.0.1', PORT)); return x + 1",
        {"PermissionError"},
    ),
    "kills everything": (
        """
import os, signal
def f(x):
    for number in (-1, JUDGE, os.getppid() or 1):
        try: os.kill(number, signal.SIGKILL)
        except OSError: pass
    return x + 1
""",
        {HARMLESS},
    ),
    "kills itself": ("import os\ndef f(x): os.kill(os.getpid(), 9)", {"killed"}),
    "hangs up": ("import os, time\ndef f(x): os.closerange(3, 32); time.sleep(60)", {"killed"}),
    "writes to the judge's memory": (
        "def f(x): open('/proc/JUDGE/mem', 'r+b').write(b'1'); return x + 1",
        REFUSED,
    ),
    "reads the judge's files": (
        "import os\ndef f(x): os.listdir('/proc/JUDGE/fd'); return x + 1",
        REFUSED,
    ),
    "becomes root": (
        "import os\ndef f(x): os.setuid(0); return x + 1",
        {"PermissionError", "OSError"},
    ),
    "raises its limits": (
        "import resource as r\ndef f(x): r.setrlimit(r.RLIMIT_NPROC, (50, 50)); return x + 1",
        {"ValueError"},
    ),
    "segmentation fault": ("import ctypes\ndef f(x): ctypes.string_at(0)", {GONE}),
    "leaves": ("import os\ndef f(x): os._exit(0)", {GONE}),
    "exits": ("import sys\ndef f(x): sys.exit(0)", {"CandidateError"}),
    "huge output": (
        "import os\nfor _ in range(200): os.write(1, bytes(1 << 20))\ndef f(x): return x + 1",
        {HARMLESS},
    ),
    "huge answer": ("def f(x): return 'a' * (1 << 25)", {GONE}),
    "deep answer": (
        "def f(x):\n    for _ in range(100_000): x = [x]\n    return x",
        {"RecursionError"},
    ),
    "endless answer": (
        "import os, sys\ndef f(x):\n"
        "    for fd in range(3, 32):\n        try:\n"
        "            while True: os.write(fd, b'\\0\\xff\\xff\\xff' + b'[' * 9999)\n"
        "        except OSError: pass",
        {BROKEN},
    ),
    "replies in the protocol": (
        "import os\ndef f(x):\n    for fd in range(3, 32):\n"
        "        try: os.write(fd, b'\\0\\0\\0\\x0e[\"ok\", 2, null')\n"
        "        except OSError: pass",
        {BROKEN},
    ),
    "asks to build code": (
        'import os\ndef f(x):\n    data = b\'{"eval": "1"}\'\n    for fd in range(3, 32):\n'
        "        try: os.write(fd, len(data).to_bytes(4, 'big') + data)\n"
        "        except OSError: pass",
        {BROKEN},
    ),
}

# name: an expression that the kernel grants to a process of the same user, if nothing refuses it.
# These use calls that a program may make with other arguments; all others: test_calls.py.
MODULES = """
import ctypes, fcntl, os, resource, select, signal, socket
from ctypes import c_long
FILE = os.path.join("FOLDER", "theirs")
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def call(x86_64, aarch64, *args):
    if libc.syscall(x86_64 if X86 else aarch64, *args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def signals_by_a_socket(command, value):
    one, other = socket.socketpair()
    fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
    fcntl.fcntl(one, command, value)
    other.send(b"1")
def owner_by_ioctl():
    fcntl.ioctl(socket.socketpair()[0], 0x8901, (JUDGE).to_bytes(4, "little"))
"""
HARMFUL = {
    "signals the judge": "os.kill(JUDGE, signal.SIGTERM)",
    "signals the group": "os.kill(0, signal.SIGTERM)",
    "signals a thread of the judge": "call(234, 131, JUDGE, JUDGE, 15)",
    "signals by a socket": "signals_by_a_socket(fcntl.F_SETOWN, JUDGE)",
    "chooses a socket's signal": "signals_by_a_socket(10, 9)",
    "signals by an owner": "owner_by_ioctl()",
    "limits the judge": "resource.prlimit(JUDGE, resource.RLIMIT_CPU, (1, 1))",
    "truncates as it opens": "os.open(FILE, os.O_TRUNC)",
    "opens for writing": "os.open(FILE, os.O_WRONLY)",
    "opens for both": "os.open(FILE, os.O_RDWR)",
    "creates": "os.open(FILE + '2', os.O_CREAT)",
    "opens a nameless file": "os.open('FOLDER', os.O_TMPFILE | os.O_RDWR)",
    "locks a part": "fcntl.lockf(os.open(FILE, 0), fcntl.LOCK_SH | fcntl.LOCK_NB)",
    "lease": "fcntl.fcntl(os.open(FILE, 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "sends to a path from a pair": (
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'evil', 'FOLDER/datagram')"
    ),
    "out of band": "socket.socketpair()[0].send(b'1', socket.MSG_OOB)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'1', ('127.0.0.1', PORT))",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "the kernel's routes": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "cryptography of the kernel": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "outlives its parent": "call(157, 167, 1, 0, 0, 0, 0)",
    "shows itself": "call(157, 167, 4, 1, 0, 0, 0)",
    "asks for its tracer": "call(157, 167, 0x59616D61, c_long(-1), 0, 0, 0)",
    "types on a terminal": "fcntl.ioctl(0, 0x5412, b'1')",
    "looks at the network": "socket.if_nameindex()",
}
LINES = "".join(f"    {name!r}: lambda: {line},\n" for name, line in HARMFUL.items())
ALL_HARM = f"""{MODULES}
HARM = {{
{LINES}}}
def f(x):
    done = []
    for name, harm in HARM.items():
        try:
            harm()
            done.append(name)
        except (PermissionError, FileNotFoundError):
            pass
        except BaseException as error:
            done.append((name, repr(error)))
    return done or x + 1
"""

# The task: f(x) == x + 1, for 1, 2 and 3 in three tests of several styles, see TESTS.
TESTS = """
import math
def check(candidate):
    assert candidate(1) == 2
    assert sorted([candidate(2)]) == [3] and candidate(2) in [3]
    assert not candidate(3) != 4 and math.isclose(abs(candidate(3)), 4)
    assert all(map(lambda x: candidate(x) == x + 1, range(9)))
check(f)
"""
HELPER = "def f(x):\n    '''x + 1'''\ndef distance(a, b):\n    return abs(a - b)\n"
HELPED = "assert distance(f(5), 6) < 1e-6 and isinstance(distance(f(1), 2), int)"
ALL_EQUAL = """
class Yes({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __abs__(self): return 4
    def __lt__(self, other): return True
    def __float__(self): return 4.0
def f(x): return Yes()
"""

# name: (program, tests)
FAKES = {
    "leaves on import": ("import os\nos._exit(0)", TESTS),
    "leaves when called": ("import os\ndef f(x): os._exit(0)", TESTS),
    "exits": ("import sys\ndef f(x): sys.exit(0)", TESTS),
    "equals everything": (ALL_EQUAL.format(base="object"), TESTS),
    "is an int and equals everything": (ALL_EQUAL.format(base="int"), TESTS),
    "takes over check": (
        "import sys\nclass Frame: pass\ndef trace(frame, *_):\n"
        "    if frame.f_code.co_name == 'check': raise SystemExit(0)\n"
        "    return trace\nsys.settrace(trace)\ndef f(x): return 0",
        TESTS,
    ),
    "looks at the tests": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n"
        "    while frame:\n        if 'expected' in frame.f_locals:\n"
        "            return frame.f_locals['expected'][0]\n        frame = frame.f_back",
        "expected = [6, 7]\nassert f(5) == expected[0]\n"
        "expected.pop(0)\nassert f(6) == expected[0]",
    ),
    "redefines a builtin": (
        "import builtins\nclass Loose(float):\n    def __lt__(self, other): return True\n"
        "builtins.abs = lambda x: Loose(0)\ndef f(x): return 0",
        "assert abs(f(1) - 2) < 1e-6",
    ),
    "shadows a builtin": (
        "def abs(x): return 0\ndef f(x): return 0",
        "assert abs(f(1) - 2) < 1e-6 and abs(f(2) - 3) < 1e-6",
    ),
    "patches a module": (
        "import math\nmath.isclose = lambda *_: True\ndef f(x): return 0",
        "import math\nassert math.isclose(f(1), 2)",
    ),
    "replaces the prompt's helper": ("def distance(a, b): return 0\ndef f(x): return 0", HELPED),
    "hooks exit": (
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 0",
        TESTS,
    ),
    "ends the loop": ("def f(x): raise StopIteration", "assert all(map(f, [[0], [1]]))"),
    "raises the tests' loss away": (
        "import sys, os\nsys.excepthook = lambda *_: os._exit(0)\ndef f(x): return 0",
        TESTS,
    ),
}

# f(xs) == sorted(xs), for lists that an honest call would not change: programs that tell the judge
# that they did.
SORT_TESTS = "xs = [3, 1]\nassert f(xs) == sorted(xs)\nys = [5, 4]\nassert f(ys) == sorted(ys)"
LIAR = """
import sys
sys.modules["candidate"]._Objects.ask = lambda self, what, args, kwargs: {reply}
def f(xs): return []
"""
LIARS = {
    "empties the argument": (LIAR.format(reply='["ok", [], [[]]]'), SORT_TESTS),
    "in frames of its own": (
        """
import json, socket
def f(xs):
    data = json.dumps(["ok", [], [[]]]).encode()
    for fd in range(3, 32):
        try:
            channel = socket.socket(fileno=fd)
            while True:
                channel.sendall(len(data).to_bytes(4, "big") + data)
                channel.recv(int.from_bytes(channel.recv(4), "big"))
        except OSError: pass
""",
        SORT_TESTS,
    ),
    "as an attribute is set": (
        LIAR.format(reply='["ok", {"r": 0}, None] if what == "call" else ["ok", None, [0, []]]'),
        "xs = [1]\nf(1).value = xs\nassert xs == []",
    ),
}

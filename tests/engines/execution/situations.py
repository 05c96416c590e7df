"""The situations in which programs run, and as a script a judge in one: `situations.py NAME`.

The judge answers lines `[function, arguments...]` (JSON); the first line out is what protects.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from nemo_algos.engines.execution.code import _sandbox, verify_code
from nemo_algos.engines.execution.sandbox import Handle, calls
from nemo_algos.engines.execution.sandbox import program as programs

USER = 12_345
# name: (as root?, which system calls are refused, as by a container or an old kernel)
SITUATIONS = {
    "root, namespaces": (True, ()),
    "user, namespaces": (False, ()),
    "root without": (True, ("unshare",)),
    "user without": (False, ("unshare",)),
    "root without, no Landlock": (True, ("unshare", "landlock_create_ruleset")),
    "user without, no Landlock": (False, ("unshare", "landlock_create_ruleset")),
}
NUMBERS = {
    "unshare": {"x86_64": 272, "aarch64": 97},
    "landlock_create_ruleset": {"x86_64": 444, "aarch64": 444},
}
NEWNS, BIND, REC, PRIVATE, NO_NEW_PRIVS = 0x20000, 4096, 16384, 1 << 18, 38
HARMLESS = "harmless"


class Judge:
    """A judge in a situation, as the tests see it; raises OSError where it cannot be entered."""

    def __init__(self, situation):
        command = [sys.executable, __file__, situation]
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.pid = self._popen.pid
        first = self._popen.stdout.readline()
        if not first:
            raise OSError(f"{situation}: exit code {self._popen.wait()}")
        self.protections = json.loads(first)

    def ask(self, function, *arguments):
        self._popen.stdin.write(json.dumps([function, *arguments]) + "\n")
        self._popen.stdin.flush()
        return json.loads(self._popen.stdout.readline())

    def close(self):
        self._popen.communicate()


def outcome(source, seconds, wall):
    """How a program ends that is asked for f(1): HARMLESS if it answers 2."""
    programs.PATIENCE = wall / seconds
    with _sandbox().program(seconds) as program:
        try:
            program.run([source])
            answer = program.ask("call", Handle(program, "f"), 1)
        except Exception as error:
            answer = type(error)
    if program.failure or isinstance(answer, type):
        return program.failure or answer.__name__
    return HARMLESS if answer == 2 else f"answered {answer!r}"


def reward(program, tests):
    return verify_code(program, json.dumps({"prompt": "", "entry_point": "f", "tests": tests}))


def zygote():
    return _sandbox()._process.pid


def enter(as_root, refused):
    if os.getuid() == 0:
        open_folders([sys.base_prefix, sys.prefix, str(Path(calls.__file__).parents[3])])
        if not as_root:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
    if refused:
        refuse([NUMBERS[name][os.uname().machine] for name in refused])


def refuse(numbers):
    code = [(calls.LOAD, 0, 0, calls.NUMBER)]
    for number in numbers:
        code += [(calls.EQUAL, 0, 1, number), (calls.GIVE, 0, 0, calls.REFUSE)]
    assert ctypes.CDLL(None).prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert calls._set_filter([*code, (calls.GIVE, 0, 0, calls.ALLOW)]) == 0


def open_folders(paths):
    """Let every user reach `paths`, in a closed home say, by mounting them on an empty folder."""
    closed = {path: parent for path in paths if (parent := closed_parent(path))}
    if not closed:
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source, target, kind, flags, data=None):
        words = [word and word.encode() for word in (source, target, kind)]
        if libc.mount(*words, ctypes.c_long(flags), data):
            raise OSError(ctypes.get_errno(), f"mount {target}")

    if libc.unshare(NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", None, REC | PRIVATE)
    descriptors = {path: os.open(path, os.O_PATH) for path in closed}
    for folder in set(closed.values()):
        mount("none", folder, "tmpfs", 0, b"mode=755")
    for path, descriptor in descriptors.items():
        os.makedirs(path, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", path, None, BIND | REC)
        os.close(descriptor)


def closed_parent(path):
    return next((str(p) for p in reversed(Path(path).parents) if not p.stat().st_mode & 1), None)


if __name__ == "__main__":
    enter(*SITUATIONS[sys.argv[1]])
    print(json.dumps(_sandbox().protections), flush=True)
    functions = {"outcome": outcome, "reward": reward, "zygote": zygote}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(functions[name](*arguments)), flush=True)

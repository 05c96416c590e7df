"""The system calls of a program: what Python needs to compute, and nothing else.

A seccomp filter allows those of calls.txt, some with certain arguments only (`_rules`), and refuses
all others, known and to come. So a program is one process with one thread, reads files and its
socket, and has no way to write, create or change a file, to reach another process or socket, to
enter a namespace, or to make what outlives it.
"""

import ctypes
import errno
import os
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
# Of each allowed call the name and its numbers, in the order of ARCHITECTURES (<asm/unistd.h>;
# "-": has none).
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.txt")
with open(TABLE) as file:
    ALLOWED = [line.split() for line in file]
WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
AF_UNIX = 1
MSG_OOB = 1
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: <asm-generic/ioctls.h>
TERMINAL_AND_FLAGS = {0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451}
DUPLICATE_AND_FLAGS = {*range(5), 1030}  # F_DUPFD to F_SETFL, F_DUPFD_CLOEXEC: <linux/fcntl.h>
GET_DUMPABLE_AND_NAME = {3, 15, 16}  # <linux/prctl.h>
WAIT_AND_WAKE = {0, 1, 9, 10}  # <linux/futex.h>
X32 = 0x40000000  # numbers from here on are x86_64's calls by another name
# <linux/prctl.h>, <linux/seccomp.h>
SET_SECCOMP = 22
FILTER = 2
# <linux/bpf_common.h>
LOAD = 0x20
AND = 0x54
EQUAL = 0x15
AT_LEAST = 0x35
GIVE = 0x06
# offsets in struct seccomp_data
NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
KILL = 0x80000000

Line = tuple[int, int, int, int]  # code, lines to skip where true, where not, operand
Rule = tuple[int, int, set[int]]  # an argument, the bits of it that count, what they may be


def protections() -> list[str]:
    """In words, what `restrict` protects here: nothing where the kernel has no filters."""
    if _available():
        return ["filter of system calls"]
    return []


def restrict() -> None:
    """Leave the allowed ones to this process, for good; it must have given up new privileges.

    Raises OSError where the kernel has filters and does not take this one.
    """
    if _available() and _set_filter(lines(os.uname().machine, os.getpid())):
        raise OSError(ctypes.get_errno(), "seccomp")


def lines(machine: str, process: int) -> list[Line]:
    """The filter of a process on an architecture. Calls of any other architecture kill it."""
    rules = _rules(process)
    numbers = _numbers(machine)
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (GIVE, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        (GIVE, 0, 0, KILL),
        *(line for name, number in numbers.items() for line in _call(number, rules.get(name, []))),
        (GIVE, 0, 0, REFUSE),
    ]


def _rules(process: int) -> dict[str, list[Rule]]:
    # An argument's lower 32 bits, which are all that the kernel looks at in these.
    whole = 0xFFFFFFFF
    return {
        "open": [(1, WRITING, {0})],
        "openat": [(2, WRITING, {0})],
        "ioctl": [(1, whole, TERMINAL_AND_FLAGS)],
        "fcntl": [(1, whole, DUPLICATE_AND_FLAGS)],  # F_SETOWN and F_SETSIG signal any process
        "socketpair": [(0, whole, {AF_UNIX})],
        "sendto": [(3, MSG_OOB, {0}), (5, whole, {0})],  # to the other end alone, not an address
        "recvfrom": [(3, MSG_OOB, {0})],
        "futex": [(1, 0x7F, WAIT_AND_WAKE)],
        "kill": [(0, whole, {process})],
        "tgkill": [(0, whole, {process})],
        "prlimit64": [(0, whole, {0})],
        "getpgid": [(0, whole, {0, process})],
        "getsid": [(0, whole, {0, process})],
        "prctl": [(0, whole, GET_DUMPABLE_AND_NAME)],
    }


def _numbers(machine: str) -> dict[str, int]:
    column = 1 + list(ARCHITECTURES).index(machine)
    return {row[0]: int(row[column]) for row in ALLOWED if row[column] != "-"}


def _call(number: int, rules: list[Rule]) -> list[Line]:
    checks = []
    for rule in rules:
        checks += _check(*rule)
    return [(EQUAL, 0, len(checks) + 1, number), *checks, (GIVE, 0, 0, ALLOW)]


def _check(argument: int, mask: int, values: set[int]) -> list[Line]:
    left = range(len(values), 0, -1)
    return [
        (LOAD, 0, 0, FIRST_ARGUMENT + 8 * argument),
        (AND, 0, 0, mask),
        *((EQUAL, skipped, 0, value) for skipped, value in zip(left, sorted(values), strict=True)),
        (GIVE, 0, 0, REFUSE),
    ]


def _available() -> bool:
    # A kernel with filters tries to read the one at address 0.
    known = os.uname().sysname == "Linux" and os.uname().machine in ARCHITECTURES
    return known and _set_filter(None) < 0 and ctypes.get_errno() == errno.EFAULT


def _set_filter(given: list[Line] | None) -> int:
    program = None
    if given is not None:
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in given))
        program = struct.pack("HP", len(given), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(SET_SECCOMP, ctypes.c_long(FILTER), program, 0, 0)

"""The system calls of a program: what Python needs to compute, and nothing else.

A seccomp filter allows those of `ALLOWED`, some with certain arguments only (`_rules`), and refuses
all others, known and to come. So a program is one process with one thread, reads files and its
socket, and has no way to write, create or change a file, to reach another process or socket, to
enter a namespace, or to make what outlives it.
"""

import ctypes
import errno
import os
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
# Name and numbers, in the order of ARCHITECTURES (<asm/unistd.h>; "-": has none).
ALLOWED = """
recvfrom 45 207      sendto 44 206          read 0 63             write 1 64
readv 19 65          writev 20 66           pread64 17 67         lseek 8 62
open 2 -             openat 257 56          close 3 57            close_range 436 436
dup 32 23            dup2 33 -              dup3 292 24           fcntl 72 25
ioctl 16 29          pipe 22 -              pipe2 293 59          eventfd2 290 19
stat 4 -             lstat 6 -              fstat 5 80            newfstatat 262 79
statx 332 291        statfs 137 43          fstatfs 138 44        access 21 -
faccessat 269 48     faccessat2 439 439     readlink 89 -         readlinkat 267 78
getcwd 79 17         getdents 78 -          getdents64 217 61     brk 12 214
mmap 9 222           munmap 11 215          mremap 25 216         mprotect 10 226
madvise 28 233       msync 26 227           futex 202 98          poll 7 -
ppoll 271 73         select 23 -            pselect6 270 72       epoll_create 213 -
epoll_create1 291 20 epoll_ctl 233 21       epoll_wait 232 -      epoll_pwait 281 22
socketpair 53 199    shutdown 48 210        getsockname 51 204    getpeername 52 205
getsockopt 55 209    rt_sigaction 13 134    rt_sigprocmask 14 135 rt_sigreturn 15 139
rt_sigpending 127 136 rt_sigtimedwait 128 137 rt_sigsuspend 130 133 sigaltstack 131 132
restart_syscall 219 128 pause 34 -          alarm 37 -            getitimer 36 102
setitimer 38 103     kill 62 129            tgkill 234 131        nanosleep 35 101
clock_nanosleep 230 115 clock_gettime 228 113 clock_getres 229 114 gettimeofday 96 169
time 201 -           times 100 153          getpid 39 172         getppid 110 173
gettid 186 178       getuid 102 174         geteuid 107 175       getgid 104 176
getegid 108 177      getresuid 118 148      getresgid 120 150     getgroups 115 158
getpgrp 111 -        getpgid 121 155        getsid 124 156        getrlimit 97 163
prlimit64 302 261    getrusage 98 165       prctl 157 167         sched_yield 24 124
sched_getaffinity 204 123 sysinfo 99 179    uname 63 160          getrandom 318 278
wait4 61 260         exit 60 93             exit_group 231 94
"""
WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
AF_UNIX, MSG_OOB = 1, 1
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: <asm-generic/ioctls.h>
TERMINAL_AND_FLAGS = {0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451}
DUPLICATE_AND_FLAGS = {*range(5), 1030}  # F_DUPFD to F_SETFL, F_DUPFD_CLOEXEC: <linux/fcntl.h>
GET_DUMPABLE_AND_NAME = {3, 15, 16}  # <linux/prctl.h>
WAIT_AND_WAKE = {0, 1, 9, 10}  # <linux/futex.h>
X32 = 0x40000000  # numbers from here on are x86_64's calls by another name
SET_SECCOMP, FILTER = 22, 2  # <linux/prctl.h>, <linux/seccomp.h>
LOAD, AND, EQUAL, AT_LEAST, GIVE = 0x20, 0x54, 0x15, 0x35, 0x06  # <linux/bpf_common.h>
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000

Line = tuple[int, int, int, int]  # code, lines to skip where true, where not, operand
Rule = tuple[int, int, set[int]]  # an argument, the bits of it that count, what they may be


def protections() -> list[str]:
    """In words, what `restrict` protects here: nothing where the kernel has no filters."""
    return ["filter of system calls"] if _available() else []


def restrict() -> None:
    """Leave the allowed ones to this process, for good; it must have given up new privileges.

    Raises OSError where the kernel has filters and does not take this one.
    """
    if _available() and _set_filter(lines(os.uname().machine, os.getpid())):
        raise OSError(ctypes.get_errno(), "seccomp")


def lines(machine: str, process: int) -> list[Line]:
    """The filter of a process on an architecture. Calls of any other architecture kill it."""
    rules, numbers = _rules(process), _numbers(machine)
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
    words, step = ALLOWED.split(), 1 + len(ARCHITECTURES)
    column = words[1 + list(ARCHITECTURES).index(machine) :: step]
    return {name: int(n) for name, n in zip(words[::step], column, strict=True) if n != "-"}


def _call(number: int, rules: list[Rule]) -> list[Line]:
    checks = [line for rule in rules for line in _check(*rule)]
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

"""System calls that no program needs, refused by a seccomp filter.

They reach what outlives a program or lies outside its namespaces and limits: System V and POSIX
message queues, semaphores, shared memory; the kernel's keys; io_uring; the host of a virtual
machine (AF_VSOCK).
"""

import ctypes
import errno
import os
import struct

# <asm/unistd.h>: the architecture's name for seccomp, its number of socket, those refused:
# shm*, sem* and msg*, mq_*, keys, io_uring_setup
CALLS = {
    "x86_64": (
        *(0xC000003E, 41),
        (*range(29, 32), *range(64, 72), 220, *range(240, 246), *range(248, 251), 425),
    ),
    "aarch64": (0xC00000B7, 198, (*range(180, 198), *range(217, 220), 425)),
}
AF_VSOCK = 40
X32 = 0x40000000  # numbers from here on are x86_64's calls by another name
SET_SECCOMP, FILTER = 22, 2  # <linux/prctl.h>, <linux/seccomp.h>
LOAD, EQUAL, AT_LEAST, GIVE = 0x20, 0x15, 0x35, 0x06  # <linux/bpf_common.h>
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000

Line = tuple[int, int, int, int]  # code, lines to skip where true, where not, operand


def protections() -> list[str]:
    """In words, what `refuse` protects here: nothing where the kernel has no filters."""
    return ["filter of system calls"] if _available() else []


def refuse() -> None:
    """Refuse them to this process, for good; it must have given up new privileges.

    Raises:
        OSError: the kernel has filters and does not take this one.
    """
    if _available() and _set_filter(_filter(*CALLS[os.uname().machine])):
        raise OSError(ctypes.get_errno(), "seccomp")


def _filter(architecture: int, socket: int, refused: tuple[int, ...]) -> list[Line]:
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (GIVE, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        (GIVE, 0, 0, KILL),
    ]
    for number in refused:
        lines += [(EQUAL, 0, 1, number), (GIVE, 0, 0, REFUSE)]
    return [
        *lines,
        (EQUAL, 0, 3, socket),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 0, 1, AF_VSOCK),
        (GIVE, 0, 0, REFUSE),
        (GIVE, 0, 0, ALLOW),
    ]


def _available() -> bool:
    # A kernel with filters tries to read the one at address 0.
    known = hasattr(os, "uname") and os.uname().sysname == "Linux" and os.uname().machine in CALLS
    return known and _set_filter(None) < 0 and ctypes.get_errno() == errno.EFAULT


def _set_filter(lines: list[Line] | None) -> int:
    if lines is None:
        given = None
    else:
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
        given = struct.pack("HP", len(lines), ctypes.addressof(code))
    return ctypes.CDLL(None, use_errno=True).prctl(SET_SECCOMP, ctypes.c_long(FILTER), given, 0, 0)

"""The filter of system calls: what it does with every number, by its own words and by the kernel's.

Which programs then run, and which do no harm: test_programs.py.
"""

import os
import struct
import sys

import pytest
from says import Says

from nemo_algos.engines.execution.sandbox import Handle, Sandbox, calls

OWN = 4321  # the process that the filter is of
NEVER = """
    execve execveat fork vfork clone clone3 socket connect bind listen accept accept4 sendmsg
    sendmmsg recvmsg ptrace process_vm_readv process_vm_writev kcmp unshare setns mount umount2
    pivot_root chroot chdir userfaultfd memfd_create memfd_secret bpf perf_event_open seccomp
    keyctl add_key request_key io_uring_setup io_setup creat mkdir mknod unlink rename link
    symlink chmod fchmod chown utime setxattr truncate ftruncate fallocate flock setpriority
    sched_setaffinity sched_setscheduler ioprio_set setuid setresuid capset personality mlock
    mlockall shmget semget msgget mq_open inotify_init fanotify_init timer_create signalfd
    pidfd_open pidfd_getfd tkill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo setpgid
    setsid sync syncfs reboot swapon init_module kexec_load iopl ioperm arch_prctl modify_ldt
    quotactl acct syslog settimeofday open_by_handle_at name_to_handle_at splice vmsplice tee
    sendfile copy_file_range landlock_restrict_self openat2 io_uring_enter fsopen open_tree
    move_mount mount_setattr utimensat fchmodat fchownat renameat linkat symlinkat mkdirat mknodat
    inotify_add_watch setsockopt lsetxattr unlinkat
"""


def verdict(lines, architecture, number, arguments):
    """What a kernel does with such a call: these are the instructions that `calls` uses."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments)
    value, at = 0, 0
    while True:
        code, true, false, operand = lines[at]
        at += 1
        if code == calls.GIVE:
            return operand
        if code == calls.LOAD:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == calls.AND:
            value &= operand
        else:
            holds = {calls.EQUAL: value == operand, calls.AT_LEAST: value >= operand}[code]
            at += true if holds else false


@pytest.fixture(params=calls.ARCHITECTURES)
def machine(request):
    return request.param


@pytest.fixture
def judged(machine):
    """Of a call by number."""
    lines, architecture = calls.lines(machine, OWN), calls.ARCHITECTURES[machine]
    return lambda number, *given: verdict(
        lines, architecture, number, (*given, *[0] * (6 - len(given)))
    )


def test_every_number_is_allowed_by_name_or_refused(machine, judged):
    allowed = calls._numbers(machine)
    assert len({*allowed.values()}) == len(allowed) > 80
    rules = calls._rules(OWN)
    for number in range(2048):
        expected = calls.ALLOW if number in allowed.values() else calls.REFUSE
        if number in {allowed.get(name) for name in rules}:
            continue
        assert judged(number) == judged(number, *[2**64 - 1] * 6) == expected, number
    assert {*rules} <= {*calls._numbers("x86_64")}
    assert not {*NEVER.split()} & {*allowed}


FORBIDDEN = 2**32 - 1
ARGUMENTS = {  # name: arguments that are allowed, and those that are not
    "openat": (
        [(-100, 0, flags) for flags in (0, os.O_CLOEXEC, os.O_DIRECTORY, os.O_NONBLOCK)],
        [(-100, 0, flags) for flags in (1, 2, 3, os.O_CREAT, os.O_TRUNC, os.O_CREAT | 2)],
    ),
    "fcntl": ([(3, c) for c in (0, 1, 2, 3, 4, 1030)], [(3, c) for c in (5, 6, 8, 10, 15, 1024)]),
    "ioctl": ([(0, 0x5401), (3, 0x5421)], [(0, 0x5412), (3, 0x8901), (3, 0x8902), (3, 0x5452)]),
    "socketpair": ([(1, 1, 0), (1, 2, 0)], [(2, 1, 0), (40, 1, 0), (30, 1, 0)]),
    "sendto": ([(3, 9, 9, 0x4000, 0, 0)], [(3, 9, 9, 0, 0xFFFF, 16), (3, 9, 9, 1, 0, 0)]),
    "recvfrom": ([(3, 9, 9, 2, 0, 0)], [(3, 9, 9, 1, 0, 0)]),
    "futex": ([(9, op) for op in (0, 128, 129, 393)], [(9, op) for op in (2, 6, 11, 13, 134)]),
    "kill": ([(OWN, 15)], [(0, 15), (1, 15), (FORBIDDEN, 15), (OWN + 1, 0)]),
    "tgkill": ([(OWN, OWN, 6)], [(1, 1, 9), (OWN + 1, OWN, 9)]),
    "prlimit64": ([(0, 7)], [(OWN, 7), (1, 7)]),
    "getpgid": ([(0,), (OWN,)], [(1,)]),
    "getsid": ([(0,), (OWN,)], [(1,)]),
    "prctl": ([(3,), (15,), (16,)], [(1,), (4,), (8,), (22,), (24,), (35,), (38,), (0x59616D61,)]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_some_are_allowed_with_some_arguments(machine, judged, name):
    number = calls._numbers(machine)[name]
    allowed, refused = ARGUMENTS[name]
    for arguments in allowed:
        given = [argument % 2**64 for argument in arguments]
        assert judged(number, *given) == calls.ALLOW, arguments
        # the kernel ignores the upper half, and so must the filter
        assert judged(number, *(argument | 7 << 32 for argument in given)) == calls.ALLOW, arguments
    for arguments in refused:
        given = [argument % 2**64 for argument in arguments]
        assert judged(number, *given) == calls.REFUSE, arguments
        assert judged(number, *(argument | 7 << 32 for argument in given)) == calls.REFUSE


def test_arguments_of_all_rules_are_tried():
    assert {*ARGUMENTS, "open"} == {*calls._rules(OWN)}


def test_older_open(judged, machine):
    if machine == "x86_64":  # the other has none
        assert judged(2, 0, os.O_CLOEXEC) == calls.ALLOW
        assert {judged(2, 0, flags) for flags in (1, 2, os.O_CREAT)} == {calls.REFUSE}


def test_calls_of_another_architecture_kill(machine):
    lines = calls.lines(machine, OWN)
    architecture = calls.ARCHITECTURES[machine]
    for number in (0, 20, 39, 63):
        for other in (0x40000003, 0x40000028, 0xC00000B7, 0xC000003E):  # i386, arm, the two
            killed = verdict(lines, other, number, [0] * 6) == calls.KILL
            assert killed == (other != architecture)
        assert verdict(lines, architecture, number | calls.X32, [0] * 6) == calls.KILL
        assert verdict(lines, architecture, -1 - number, [0] * 6) == calls.KILL


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
def test_kernel_refuses_every_number_that_is_not_allowed():
    allowed = calls._numbers(os.uname().machine)
    source = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def f(numbers):
    passed = []
    for number in numbers:
        ctypes.set_errno(0)
        if libc.syscall(number, *[ctypes.c_long(-1)] * 6) >= 0 or ctypes.get_errno() != errno.EPERM:
            passed.append((number, ctypes.get_errno()))
    return passed
"""
    # Uretprobe and uprobe: since Linux 6.14 no filter is asked, and the kernel ends whoever calls
    # them from elsewhere than its own page.
    probes = {335, 336} if os.uname().machine == "x86_64" else set()
    numbers = [number for number in range(1024) if number not in {*allowed.values(), *probes}]
    sandbox = Sandbox(namespaces=False)
    assert sandbox.protections[-1] == Says("system calls")
    with sandbox.program(60.0) as program:
        program.run([source])
        assert program.ask("call", Handle(program, "f"), numbers) == []
    sandbox.close()


MACHINE_CODE = {  # name: code that calls getpid in another way than the filter's architecture
    "of 32 bits": "b814000000cd80c3",  # mov eax, 20; int 0x80; ret
    "of x32": "b827000040" + "0f05c3",  # mov eax, 0x40000027; syscall; ret
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the code is x86_64's")
@pytest.mark.parametrize("name", MACHINE_CODE)
def test_machine_code_of_another_architecture_ends_the_program(name):
    source = f"""
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def f():
    page = libc.mmap(None, 4096, 7, 0x22, -1, 0)
    ctypes.memmove(page, bytes.fromhex({MACHINE_CODE[name]!r}), 10)
    return ctypes.CFUNCTYPE(ctypes.c_long)(page)()
"""
    sandbox = Sandbox(namespaces=False)
    with sandbox.program(60.0) as program:
        program.run([source])
        with pytest.raises(Exception, match="gone"):
            program.ask("call", Handle(program, "f"))
    assert program.failure == "gone"
    sandbox.close()

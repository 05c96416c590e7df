"""What a program may not do: `Lock` closes off the zygote (zygote.py), `confine` each fork of it.

Linux with namespaces: an empty root with the interpreter read-only, no network, its own processes.
Everywhere: limits, no new processes, no privileges; Landlock where the kernel has it; as root,
another user. System calls: calls.py. README.md says what each environment gives.
"""

import ctypes
import grp
import os
import pwd
import resource
import signal
import struct
import sys
from contextlib import suppress

LINUX = sys.platform == "linux"
MEMORY = 1 << 30
FILES = 32
USERS = 2_000_000_000  # as root, each judge's programs run as a user ID of their own below this
ROOT = "/proc"  # where the new root is built: a folder that exists everywhere and holds no file
READABLE = ("/usr", "/lib", "/lib64", sys.base_prefix)  # the interpreter and its libraries
LANDLOCK = {1: "Landlock: files", 4: "Landlock: TCP", 6: "Landlock: signals"}  # by its version

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>
NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
RDONLY = 1
NOSUID = 2
NODEV = 4
NOEXEC = 8
REMOUNT = 32
NOATIME = 1024
NODIRATIME = 2048
BIND = 4096
REC = 16384
PRIVATE = 1 << 18
RECURSIVE = 0x8000
KEPT = NOSUID | NODEV | NOEXEC | NOATIME | NODIRATIME  # a user namespace may not clear them
SET_PDEATHSIG = 1
SET_DUMPABLE = 4
SET_NO_NEW_PRIVS = 38


class Lock:
    """Closes what can be closed of this process; `confine` does the rest in a fork of it.

    namespaces: enter new ones (OSError where the system refuses). Then the caller's process only
    waits, and __init__ returns in its child, PID 1 of the new PID namespace, which ends with it.
    """

    def __init__(self, namespaces: bool):
        self.protections = ["limits, no new processes"]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._user = _nobody(_users()) if os.getuid() == 0 else None
        if namespaces:
            self._enter_namespaces()
            self._change_root()
            self.protections.append("namespaces, empty read-only root, no network")
        if self._user:
            self.protections.append("a user of its own")
        # landlock_create_ruleset(NULL, 0, VERSION): the version of Landlock, -1 without
        version = self._libc.syscall(444, None, 0, 1) if LINUX else -1
        self._landlock = self._landlock_rules(version) if version > 0 else None
        for first, words in LANDLOCK.items():
            if version >= first:
                self.protections.append(words)
        if LINUX:  # else a program of the same user traces the zygote; uid_map is written before
            self._call("prctl", SET_DUMPABLE, 0, 0, 0, 0)

    def confine(self, seconds: float) -> None:
        """Lock this fork down, for good. seconds: of CPU time, after which SIGPROF ends it."""
        os.setsid()
        os.chdir("/")
        signal.setitimer(signal.ITIMER_PROF, seconds)
        _limit(resource.RLIMIT_CPU, int(seconds) + 1)  # in case the program stops the timer
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_FSIZE, 0)
        _limit(resource.RLIMIT_NOFILE, FILES)
        if LINUX:  # macOS refuses it
            _limit(resource.RLIMIT_AS, MEMORY)
        if self._user:
            os.setgroups([])
            os.setgid(self._user)
            os.setuid(self._user)
        _limit(resource.RLIMIT_NPROC, 0)  # after setuid: it is the new user's
        if LINUX:
            self._give_up_privileges()

    def _give_up_privileges(self) -> None:
        self._call("prctl", SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        self._call("prctl", SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if self._landlock is not None:
            self._call("syscall", 446, self._landlock, 0)  # landlock_restrict_self
            os.close(self._landlock)
        # no capabilities (header: version 3, this process): a user namespace has given them all
        self._call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))

    def _enter_namespaces(self) -> None:
        uid = os.getuid()
        gid = os.getgid()
        flags = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
        self._call("unshare", flags | (NEWUSER if uid else 0))
        if uid:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        child = os.fork()
        if child:
            os.closerange(3, 1024)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)

    def _change_root(self) -> None:
        self._mount("none", "/", None, REC | PRIVATE)
        self._mount("none", ROOT, "tmpfs", NOSUID | NODEV)
        for path in READABLE:
            inside = ROOT + path
            if os.path.exists(path) and not os.path.exists(inside):
                os.makedirs(inside)
                self._mount(path, inside, None, BIND | REC)
                self._make_read_only(inside)
        self._mount("none", ROOT, None, REMOUNT | RDONLY | NOSUID | NODEV)
        os.chroot(ROOT)

    def _make_read_only(self, path: str) -> None:
        wanted = struct.pack("QQQQ", RDONLY | NOSUID | NODEV, 0, 0, 0)
        try:  # mount_setattr (Linux 5.12): what is mounted beneath, too
            self._call("syscall", 442, -1, path.encode(), RECURSIVE, wanted, len(wanted))
        except OSError:
            kept = os.statvfs(path).f_flag & KEPT
            self._mount("none", path, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV | kept)

    def _mount(self, source: str, target: str, kind: str | None, flags: int) -> None:
        named = kind.encode() if kind else None
        self._call("mount", source.encode(), target.encode(), named, flags, None)

    def _landlock_rules(self, version: int) -> int:
        # Reading under READABLE alone; no TCP, and no signal to a process outside.
        # ABI 1 knows 13 rights to files, 2 one more, ...; 3: TCP bind, connect; 3: sockets, signals
        handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
        size = 24
        if version < 4:
            size = 8
        elif version < 6:
            size = 16
        attributes = struct.pack("QQQ", handled, 3, 3)[:size]
        rules = self._call("syscall", 444, attributes, len(attributes), 0)
        for path in filter(os.path.exists, READABLE):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            beneath = struct.pack("=Qi", 0b1101, folder)  # execute, read a file, read a folder
            self._call("syscall", 445, rules, 1, beneath, 0)
            os.close(folder)
        return rules

    def _call(self, function: str, *args: int | bytes | None) -> int:
        words = []
        for arg in args:
            words.append(ctypes.c_long(arg) if isinstance(arg, int) else arg)
        result = getattr(self._libc, function)(*words)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")
        return result


def _users() -> int:
    """One more than the largest user ID that this namespace maps: in a container maybe few."""
    if not LINUX:
        return USERS
    with open("/proc/self/uid_map") as rows:
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, rows)]
    return min(USERS, max(first + count for first, count in ranges))


def _nobody(users: int) -> int | None:
    """A user, and group, that this system does not know; None where all of them are known."""
    last = users - 1 - os.getpid() % min(users, 4096)
    return next((user for user in range(last, 0, -1) if not _named(user)), None)


def _named(user: int) -> bool:
    for look_up in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            look_up(user)
            return True
    return False


def _limit(which: int, value: int) -> None:
    most = resource.getrlimit(which)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(which, (value, value))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)

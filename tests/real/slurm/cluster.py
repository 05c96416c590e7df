"""A Slurm cluster of three nodes on this machine, in namespaces: all ends with one process."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NODES = ("n1", "n2", "n3")
SINGLE = ("n4", "n5")  # of one GPU, in the partition `single`: started by the tests that use them
ADDRESSES = "".join(f"10.77.0.{name[1]} {name}\n" for name in (*NODES, *SINGLE))
HOSTS = f"127.0.0.1 localhost\n10.77.0.254 ctl\n{ADDRESSES}"
USER = {"passwd": "user:x:1234:1234::/srv/user:/bin/bash", "group": "user:x:1234:"}
NOTHING = "# no line: Slurm refuses an empty file\n"
NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc")
PLUGIN = ["gcc", "-shared", "-fPIC", "-Wall", "-Wno-unused-result", "-o"]


def private(path: Path) -> Iterator[str]:
    """`FOLDER=PATH` for private.sh: a folder above `path` is /tmp, or one that only root enters."""
    for parent in reversed(path.parents):
        if parent == Path("/tmp") or not parent.stat().st_mode & 1:
            yield f"{parent}={path}"
            return


def until(happened: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait for it; the time is a backstop. Raises AssertionError."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


class Cluster:
    """Its shared folder is /srv there, `folder` here; `seen` are further folders that jobs use."""

    path = f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"

    def __init__(self, folder: Path, seen: list[Path]) -> None:
        self.folder = folder
        folder.chmod(0o755)
        for name in ("etc", "log", "munge", "spool", "state"):
            (folder / name).mkdir()
        self.init = "none yet"
        self.home = folder / "user"
        self.home.mkdir()
        os.chown(self.home, 1234, 1234)
        self._configure()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._private = list(dict.fromkeys(pair for path in seen for pair in private(path)))

    def start(self) -> None:
        shell = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child"]
        self._start([*shell, str(HERE / "cluster.sh"), str(self.folder), *self._private])
        until((self.folder / "up").exists, "the cluster did not start", 30)
        unshare = self._processes[0].pid
        self.init = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0]
        until(lambda: self.user("sinfo").returncode == 0, "no slurmctld", 30)
        for node in NODES:
            self.start_node(node)
        until(lambda: self.states() == {"idle": 3}, "no three idle nodes", 60)

    def _configure(self) -> None:
        shutil.copytree(HERE / "etc", self.folder / "etc", dirs_exist_ok=True)
        (self.folder / "etc" / "hosts").write_text(HOSTS)
        for file, line in USER.items():
            text = Path("/etc", file).read_text()
            (self.folder / "etc" / file).write_text(f"{text}{line}\n")
        (self.folder / "etc" / "changed.conf").write_text(NOTHING)
        for gpu in range(8):
            (self.folder / f"gpu{gpu}").touch()
        plugin = str(self.folder / "pyxis.so")
        subprocess.run([*PLUGIN, plugin, str(HERE / "pyxis.c")], check=True)

    def _start(self, command: list[str]) -> None:
        with (self.folder / "log" / "out").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._processes.append(process)

    def end(self) -> None:
        """Kills its first process, and with that all: namespaces, daemons, jobs."""
        for process in self._processes:
            process.kill()
            process.wait()
        until(lambda: not Path(f"/proc/{self.init}").exists(), "the cluster did not end", 30)

    def inside(self, command: list[str]) -> list[str]:
        return ["nsenter", "--target", self.init, "--all", *command]

    def root(self, *command: str) -> str:
        """The output of a command as root."""
        done = subprocess.run(self.inside(list(command)), capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout

    def user(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A shell command as the cluster's user, in his home."""
        variables = {"HOME": "/srv/user", "USER": "user", "PATH": self.path, **environment}
        words = ["setpriv", "--reuid=user", "--regid=user", "--init-groups", "env", "-i"]
        words += [f"{name}={value}" for name, value in variables.items()]
        script = ["bash", "-c", f"cd && {command}"]
        return subprocess.run(self.inside([*words, *script]), capture_output=True, text=True)

    def states(self, partition: str = "batch") -> dict[str, int]:
        """How many of the nodes are idle, allocated, down."""
        lines = self.root("sinfo", "--noheader", "-p", partition, "-o", "%T %D").splitlines()
        return {state: int(count) for state, count in (line.split() for line in lines)}

    def start_node(self, name: str) -> None:
        self._start(self.inside([str(HERE / "node.sh"), name, *self._private]))

    def crash(self, name: str) -> None:
        """As a power cut."""
        self.root("kill", "-KILL", (self.folder / f"{name}.pid").read_text().strip())

    @contextmanager
    def away(self) -> Iterator[None]:
        """Without slurmctld, which saves its state before: killed, it would forget new jobs."""
        (self.folder / "away").touch()
        self.root("pkill", "-TERM", "-x", "slurmctld")
        until(lambda: self.user("pgrep -x slurmctld").returncode, "slurmctld did not end", 60)
        try:
            yield
        finally:
            (self.folder / "away").unlink()
            until(lambda: self.user("sinfo").returncode == 0, "slurmctld did not come back", 60)

    def job(self, number: int) -> dict[str, str]:
        """What `scontrol show job` says."""
        return self.tasks(number)[0]

    def tasks(self, number: int) -> list[dict[str, str]]:
        """Of each task of an array."""
        lines = self.root("scontrol", "--oneliner", "show", "job", str(number)).splitlines()
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]

    @contextmanager
    def configured(self, line: str) -> Iterator[None]:
        """With another line in slurm.conf."""
        changed = self.folder / "etc" / "changed.conf"
        changed.write_text(f"{line}\n")
        self.root("scontrol", "reconfigure")
        try:
            yield
        finally:
            changed.write_text(NOTHING)
            self.root("scontrol", "reconfigure")

    def nodes(self, job: int) -> list[str]:
        """On which it runs or ran, the batch script's first."""
        listed = self.root("scontrol", "show", "hostnames", self.job(job)["NodeList"])
        return listed.split()

"""Ends every process of a rehearsal when the command does, even if that is killed.

It waits for the end of its standard input, which only the command holds open.
"""

import sys
from pathlib import Path

import psutil

from rehearsal.training import belongs_to

ROUNDS = 3  # one ended process may have just started another


def reap(folder: Path) -> None:
    """SIGKILL for each process that is marked with the folder, but this one."""
    for _ in range(ROUNDS):
        found = [p for p in psutil.process_iter() if p.pid != psutil.Process().pid]
        alive = [process for process in found if belongs_to(process, folder)]
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=5)


if __name__ == "__main__":
    sys.stdin.read()
    reap(Path(sys.argv[1]))

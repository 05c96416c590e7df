"""What runs, as /proc shows it."""

import time
from contextlib import suppress
from pathlib import Path


def children(pid="self"):
    """Of this process, or of another."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(child) for child in task.read_text().split()}
    return found


def descendants(pid):
    found = sorted(children(pid))
    return found + [pid for child in found for pid in descendants(child)]


def of_user(user):
    """The processes of that user."""
    return [path for path in Path("/proc").glob("[0-9]*") if _owner(path) == user]


def gone(pid, seconds=600.0):
    """Whether the process ends, or is a zombie of another parent's, long as it may take."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def _owner(path):
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None

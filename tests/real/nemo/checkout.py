"""NeMo-RL's git checkout, and a worktree of it for each version under test."""

import os
import subprocess
from pathlib import Path

from nemo_algos.preflight.check.release import Release, read

REFS = {
    "v0.7.0": ("v0.7.0",),
    "main": ("origin/main", "main"),
    "3512": ("refs/pull/3512/merge",),  # estimators return AdvantageResult
    "3766": ("refs/pull/3766/merge",),  # the controller's stage reads more columns
    "3768": ("refs/pull/3768/merge",),  # its actor takes what may be None
}  # name: revisions, first that exists


WALK = "walk"  # the worktree of commits.py, one commit after the other


def home() -> Path | None:
    """$NEMO_RL_HOME, else nemo_algos/nemo-rl in the user's cache directory; None where no clone is.

    As in run.sh.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("NEMO_RL_HOME") or Path(cache) / "nemo_algos" / "nemo-rl")
    return path if (path / ".git").exists() else None


def worktree(clone: Path, name: str, commit: str = "") -> Path:
    """A version, or a commit, checked out beside the clone (../nemo-rl-worktrees/NAME)."""
    path = clone.parent / "nemo-rl-worktrees" / name
    if name == WALK and not commit:
        return path  # as commits.py has left it
    commit = commit or _commit(clone, name)
    if not (path / ".git").exists():
        _git(clone, "worktree", "prune")
        _git(clone, "worktree", "add", "--detach", str(path), commit)
    elif _git(path, "rev-parse", "HEAD") != commit:
        _git(path, "checkout", "--detach", commit)
    return path


def _commit(clone: Path, name: str) -> str:
    if name not in REFS:
        raise ValueError(f"NEMO_RL_REF={name!r}: one of {', '.join(REFS)}")
    for revision in REFS[name]:
        try:
            return _git(clone, "rev-parse", "--verify", f"{revision}^{{commit}}")
        except subprocess.CalledProcessError:
            continue
    raise ValueError(f"{clone} has none of {', '.join(REFS[name])}: git fetch --tags")


def release() -> Release:
    """The NeMo-RL under test, as a run is judged by it."""
    import nemo_rl  # pyright: ignore[reportMissingImports]

    return read(Path(nemo_rl.__path__[0]).parent)


def _git(where: Path, *args: str) -> str:
    command = ["git", "-C", str(where), *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

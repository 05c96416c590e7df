"""A rehearsal on the terminal: a line for each verdict, and what it comes to."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nemo_algos.preflight.rehearsal.verdict import Verdict

MARKS = {"passed": "ok", "warning": "warn", "failed": "FAIL", "unchecked": "open"}
LAST = 12  # lines of a log that the terminal shows


def line(verdict: Verdict) -> str:
    """`stage  mark  seconds  message`, and the last lines of the log of what failed."""
    took = f"{verdict.seconds:5.0f} s" if verdict.seconds >= 1 else " " * 7
    key = f" [{verdict.key}]" if verdict.key and verdict.key not in verdict.message else ""
    text = f"{verdict.stage:10} {MARKS[verdict.outcome]:4} {took}  {verdict.message}{key}"
    lines = str(verdict.details.get("lines", "")).splitlines()[-LAST:]
    return "\n".join([text, *(f"           | {one}" for one in lines)])


def summary(found: Sequence[Verdict], folder: Path) -> str:
    """Counts, what was changed for this machine, and where the logs are."""
    counts = Counter(v.outcome for v in found)
    listed = next((v.details["changes"] for v in found if "changes" in v.details), [])
    kinds = Counter(change["kind"] for change in listed)
    parts = [", ".join(f"{mark}: {counts[name]}" for name, mark in MARKS.items())]
    if listed:
        parts.append(
            "changed for this machine: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        )
        parts += [
            f"  given up: {c['path']} ({c['reason']})" for c in listed if c["kind"] == "given up"
        ]
    parts.append(f"logs, samples and the small config: {folder}")
    return "\n".join(parts)

"""A row of last_whole_run.md from a suite's log: whole_run_row.py PAGE SUITE COMMIT MINUTES LOG."""

import re
import sys
import time
from collections import Counter
from pathlib import Path

HEAD = "# The last whole runs\n\nWritten by `make nightly`.\n\n"
HEAD += "| suite | commit | day | passed | failed | minutes |\n|---|---|---|---|---|---|\n"
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)


def main(page: Path, suite: str, commit: str, minutes: str, log: Path) -> None:
    """The suite's row takes the place of its row before."""
    counts = Counter[str]()
    for line in SUMMARY.findall(log.read_text(errors="replace")):
        for number, word in re.findall(r"(\d+) (\w+)", line):
            counts[word.removesuffix("s") if word == "errors" else word] += int(number)
    failed = counts["failed"] + counts["error"]
    day = time.strftime("%Y-%m-%d")
    row = f"| {suite} | {commit} | {day} | {counts['passed']} | {failed} | {minutes} |\n"
    text = page.read_text() if page.exists() else HEAD
    kept = [x for x in text.splitlines(keepends=True) if not x.startswith(f"| {suite} |")]
    page.write_text("".join(kept) + row)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5], Path(sys.argv[5]))

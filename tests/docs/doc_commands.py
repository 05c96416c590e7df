"""Runs the shell commands of README.md and docs/: `python3 tests/docs/doc_commands.py [PAGE...]`.

A ```bash block runs as it stands, the blocks of a page in order in one fresh copy of the tree,
beside the page's python files; what it names behind `bash` it needs, and then it does not run.
Of a block that `fails` the command must end with an error, and print the text shown beneath it.
Commands that .ci/run has itself are left to it. Needs no more than Python.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {"gpu", "cluster", "docker", "mac", "network", "model", "data", "slow"}
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# ([\w/]+\.py)\n")  # a python block's first line, as in test_docs.py
TESTS = "uv run pytest"  # `make test`
ENVIRONMENT = {
    "UV_PROJECT_ENVIRONMENT": str(ROOT / ".venv"),
    "UV_NO_SYNC": "1",
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}


class Block(NamedTuple):
    """A fence: its language, the words behind it, what is in it and where.

    shown: the text block right beneath.
    """

    language: str
    marks: frozenset[str]
    body: str
    line: int
    shown: str


def pages(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The fences of a page, without their indentation."""
    found, below, start = [], "", len(text)
    for match in reversed(list(FENCE.finditer(text))):
        language, *marks = match["info"].split() or [""]
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start()) + 1
        shown = "" if text[match.end() : start].strip() else below
        found.append(Block(language, frozenset(marks), body, line, shown))
        below, start = body if language in ("", "text") else "", match.start()
    return found[::-1]


def runs(block: Block) -> bool:
    return block.language == "bash" and not block.marks & NEEDS


def script(block: Block, elsewhere: set[str]) -> str:
    """The block without the lines that CI runs elsewhere."""
    lines = block.body.splitlines()
    return "\n".join(line for line in lines if line.split(" #")[0].strip() not in elsewhere)


def write_files(page: Path, folder: Path) -> None:
    """The page's files in a folder: blocks that begin with `# NAME.yaml` or `# NAME.py`."""
    for block in blocks(page.read_text()):
        if match := re.match(r"# ([\w/]+\.(?:py|yaml))\n", block.body):
            path = folder / match[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)


def ci_commands(root: Path = ROOT) -> set[str]:
    lines = (root / ".ci" / "run").read_text().splitlines()
    return {TESTS, *(line for line in lines if line.startswith(("uv run ", "make ")))}


def complaint(block: Block, status: int, output: str) -> str:
    """What is wrong with how a block ended; empty where nothing is."""
    if "fails" not in block.marks:
        return f"exit status {status}" if status else ""
    if not status or "Traceback" in output:
        ended = "a traceback" if status else "exit status 0"
        return f"{ended}, where an error is expected"
    printed = {" ".join(line.split()) for line in output.splitlines()}
    said = [" ".join(line.split()) for line in block.shown.splitlines()]
    missing = [line for line in said if line and line != "..." and line not in printed]
    return f"does not print {missing[0]!r}" if missing else ""


def run(page: Path, folder: Path, elsewhere: set[str]) -> str:
    """Run a page's blocks in a folder up to the first that is wrong; the complaint about it."""
    found = blocks(page.read_text())
    for block in found:
        if block.language == "python" and (name := FILE.match(block.body)):
            (folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1]).write_text(block.body)
    for block in filter(runs, found):
        start, where = time.monotonic(), f"{os.path.relpath(page, ROOT)}:{block.line}"
        status, output = shell(script(block, elsewhere), folder)
        wrong = complaint(block, status, output)
        print(f"{time.monotonic() - start:6.1f} s  {where:32} {wrong or 'ok'}", flush=True)
        if wrong:
            return f"{where}: {wrong}\n{block.body}\n{output[-4000:]}"
    return ""


def shell(commands: str, folder: Path) -> tuple[int, str]:
    """Exit status and output of a command, on one thread.

    `uv run` takes the project's own environment as it is, and downloads nothing.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**inherited, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ended.returncode, ended.stdout


def copy(folder: Path) -> None:
    """The files that git has, or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main(chosen: list[str]) -> int:
    elsewhere, complaints = ci_commands(), []
    for page in [Path(name).resolve() for name in chosen] or pages():
        with tempfile.TemporaryDirectory(prefix="nemo-algos-docs-") as folder:
            copy(Path(folder))
            complaints.append(run(page, Path(folder), elsewhere))
    sys.stderr.writelines(complaints)
    return any(complaints)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

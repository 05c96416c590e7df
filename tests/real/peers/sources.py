"""Frameworks whose import asks for much more than is there, as source: wheels, and slime by git."""

import ast
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("sources.txt")
NEWER = LIST.with_name("sources_python312.txt")
SLIME = "https://github.com/THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515"  # 0.3.1
CACHE = Path(os.environ.get("NEMO_ALGOS_CACHE", Path.home() / ".cache" / "nemo_algos"))


def folder(wheels: Path = LIST) -> Path:
    """Where the wheels of a list are unpacked; made when it is not there."""
    found = CACHE / f"peer-sources-{sha256(wheels.read_bytes()).hexdigest()[:12]}"
    if not found.exists():
        python = ["--python", "3.11", *(["--python-version", "3.12"] if wheels == NEWER else [])]
        into = ["--no-deps", "--target", f"{found}.part", "-r", str(wheels)]
        subprocess.run(["uv", "pip", "install", "--quiet", *python, *into], check=True)
        Path(f"{found}.part").rename(found)
    return found


def slime() -> Path:
    """slime's checkout; the test is skipped where there is none and its host cannot be reached."""
    home, commit = SLIME
    found = CACHE / f"slime-{commit[:12]}"
    if not found.exists():
        git = ["git", "-C", f"{found}.part"]
        subprocess.run(["git", "init", "--quiet", f"{found}.part"], check=True)
        fetch = [*git, "fetch", "--quiet", "--depth=1", home, commit]
        if done := subprocess.run(fetch, capture_output=True, text=True).stderr:
            pytest.skip(f"no checkout of slime at {found}: {done}")
        subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)
        Path(f"{found}.part").rename(found)
    return found


def take(file: str, names: str, scope: dict[str, Any], wheels: Path = LIST) -> dict[str, Any]:
    """The functions and classes `names` of a file, undecorated, defined in the scope."""
    tree, wanted = ast.parse((folder(wheels) / file).read_text()), names.split()
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [x for x in ast.walk(tree) if isinstance(x, kinds) and x.name in wanted]
    assert len(found) == len(wanted), (file, wanted)
    for x in found:
        x.decorator_list = []
    for x in (inner for outer in found for inner in ast.walk(outer)):
        if isinstance(x, ast.FunctionDef):  # annotations name what is not there
            x.returns = None
        if isinstance(x, ast.arg):
            x.annotation = None
    exec(compile(ast.Module(found, []), file, "exec"), scope)
    return scope

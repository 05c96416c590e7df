"""Functions of frameworks whose import asks for much more, out of the source of their wheels."""

import ast
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("sources.txt")
CACHE = Path(os.environ.get("NEMO_ALGOS_CACHE", Path.home() / ".cache" / "nemo_algos"))


def folder() -> Path:
    """Where the wheels of sources.txt are unpacked; made when it is not there."""
    found = CACHE / f"peer-sources-{sha256(LIST.read_bytes()).hexdigest()[:12]}"
    if not found.exists():
        into = ["--no-deps", "--target", f"{found}.part", "-r", str(LIST)]
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", "3.11", *into], check=True)
        Path(f"{found}.part").rename(found)
    return found


def take(file: str, names: str, scope: dict[str, Any]) -> dict[str, Any]:
    """The functions and classes `names` of a file, undecorated, defined in the scope."""
    tree, wanted = ast.parse((folder() / file).read_text()), names.split()
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

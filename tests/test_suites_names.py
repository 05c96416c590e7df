"""Names that the suites of tests/real take from each other and from the product are there.

Those suites run in environments of their own; here a name that has moved is seen in seconds.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REAL = ROOT / "tests/real"
SUITES = sorted(p for p in REAL.iterdir() if any(p.glob("*.py")))
BESIDE = {"stack": ("nemo",)}  # suites whose helpers another takes


def defined(path):
    """The names that a file binds outside its functions and classes."""
    tree, inner = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner |= {id(n) for part in node.body for n in ast.walk(part)}
    for node in (n for n in ast.walk(tree) if id(n) not in inner):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((a.asname or a.name).split(".")[0] for a in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def taken(path, known):
    """(module, name, line) of each name that a file takes from a known module."""
    tree = ast.parse(path.read_text())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name: a.name for a in node.names if a.name in known}
        for name in node.names if isinstance(node, ast.ImportFrom) else ():
            if (inner := f"{node.module}.{name.name}") in known:
                modules[name.asname or name.name] = inner
            elif node.module in known:
                yield node.module, name.name, node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and not node.attr.startswith("__"):
                yield module, node.attr, node.lineno


@pytest.fixture(scope="module")
def product():
    files = (ROOT / "nemo_algos").rglob("*.py")
    names = {p.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): p for p in files}
    return {name.removesuffix(".__init__"): set(defined(p)) for name, p in names.items()}


@pytest.mark.parametrize("suite", SUITES, ids=lambda p: p.name)
def test_what_a_suite_takes_is_there(suite, product):
    folders = [suite, *(REAL / name for name in BESIDE.get(suite.name, ()))]
    known = product | {p.stem: set(defined(p)) for folder in folders for p in folder.glob("*.py")}
    files = list(suite.glob("*.py"))
    assert files
    assert not [
        f"{path.name}:{line} {module}.{name}"
        for path in files
        for module, name, line in taken(path, known)
        if name not in known[module]
    ]

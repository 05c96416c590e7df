"""What may import what: the direction of imports, and that a config is checked without torch."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import nemo_algos

PACKAGE = Path(__file__).parents[1] / "nemo_algos"
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "transformers", "ray", "nemo_rl", "megatron", "matplotlib", "sympy")
# what a part of the package may import of ours; for parts not listed: FORBIDDEN
ALLOWED = {
    "rollouts": {"core"},
    "core": {"core", "rollouts"},
    "config": {"environment", "naming"},
    "naming": set(),
    "environment": set(),
    "lines": {"config", "untrusted"},
    "untrusted": set(),
    "terminal": {"untrusted"},
    "style": set(),
    "data": {"data", "rewards", "lines", "config", "untrusted"},
    "processes": set(),
    "rewards": {"rewards"},
    "methods": {"methods", "core", "rollouts", "config"},
    "objective": {"objective", "methods", "core", "rollouts", "config"},
    "verify": {"methods", "objective", "core", "rollouts", "conformance", "untrusted"},
    "conformance": {
        "conformance",
        "methods",
        "objective",
        "verify",
        "lines",
        "config",
        "untrusted",
    },
    "plan": {"plan", "preflight", "config", "style"},
    "slurm": {"slurm", "plan", "preflight", "lines", "config", "terminal"},
    "adapters": {"adapters", *nemo_algos.__all__},
}
FORBIDDEN = {
    "preflight": {"nemo", "plan", "slurm", "evals", "report", "study", "cli"},
    "local": {"preflight", "nemo", "evals", "report", "study", "cli"},
    "nemo": {"local", "evals", "report", "study", "cli"},
    "evals": {"preflight", "nemo", "report", "study", "cli"},
    "report": {"preflight", "nemo", "study", "cli"},
    "study": {"preflight", "nemo", "evals", "report", "cli"},
}


def imports(source, module):
    """Every module named in an import, wherever it stands; `from a import b` as a.b."""
    package, found = module.split(".")[:-1], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def parts(found):
    """The parts of our package among these modules: nemo_algos.core.dual is of core."""
    return {name.split(".")[1] for name in found if name.startswith("nemo_algos.")}


@cache
def part_and_imports(path):
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    return relative.parts[1], imports(path.read_text(), ".".join(relative.parts))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import nemo_algos.core.dual", {"core"}),
        ("from nemo_algos import core, config", {"core", "config"}),
        ("from nemo_algos.objective.build import build", {"objective"}),
        ("def f():\n    from nemo_algos.local import run", {"local"}),
        ("if TYPE_CHECKING:\n    from nemo_algos.rollouts import Rollouts", {"rollouts"}),
        ("from . import groups", {"core"}),
        ("from ..local.run import run", {"local"}),
        ("from .. import local", {"local"}),
        ("import torch, nemo_algos_other.core", set()),
    ],
)
def test_every_form_of_import_is_seen(source, found):
    assert parts(imports(source, "nemo_algos.core.dual")) == found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_direction_of_imports(path):
    part, found = part_and_imports(path)
    used = parts(found)
    assert used <= ALLOWED.get(part, used), f"{part} may not import {used - ALLOWED[part]}"
    assert not used & FORBIDDEN.get(part, set())


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_nemo_imports_nemo_rl_and_ray(path):
    part, found = part_and_imports(path)
    foreign = {name.split(".")[0] for name in found} & {"nemo_rl", "ray", "megatron"}
    own = {"nemo": foreign, "adapters": {"megatron"}}.get(part, set())  # slime runs in Megatron
    assert foreign <= own or path.parent.name == "scripts"  # of a job's driver


def test_the_parts_are_there():
    """So that a renamed folder does not pass unseen."""
    assert {*ALLOWED, *FORBIDDEN, "cli"} <= {part_and_imports(path)[0] for path in FILES}
    assert len(FILES) > 30


def loaded(code):
    """Which of the heavy modules are loaded after the code, in a fresh interpreter."""
    code = f"{code}\nimport sys; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (
            "import nemo_algos.config, nemo_algos.methods, nemo_algos.objective.build\n"
            "import nemo_algos.rewards, nemo_algos.data.tasks, nemo_algos.data.math_problems\n"
            "from nemo_algos.cli import COMMANDS, loaded\n"
            "for name in COMMANDS:\n    if name != 'verify': loaded(name)\n"
            "from nemo_algos import build; build({'name': 'erpo', 'bounds': 'etr'})",
            [],
        ),
        ("from nemo_algos.preflight.check import check; check('nemo_rl.yaml', [], 'main')", []),
        ("import nemo_algos.rollouts, nemo_algos.verify", ["torch"]),
    ],
)
def test_what_is_loaded(code, want):
    assert loaded(code) == want


def graph():
    """Module -> the modules of ours that it imports, wherever the import stands."""
    modules = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in FILES}
    names = {m.removesuffix(".__init__"): m for m in modules}
    edges = {}
    for module, path in modules.items():
        found = part_and_imports(path)[1]
        found = {n if n in names else n.rpartition(".")[0] for n in found}
        edges[module] = {names[n] for n in found if n in names and names[n] != module}
    return edges


def circles(edges):
    """The sets of two or more modules that reach one another."""
    reached = {m: set(below) for m, below in edges.items()}
    while True:
        more = {m: set().union(below, *(reached[b] for b in below)) for m, below in reached.items()}
        if more == reached:
            break
        reached = more
    found = {frozenset(o for o in below if m in reached[o]) for m, below in reached.items()}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def test_a_circle_is_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "b"}}) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_one_another():
    """In functions and for types neither."""
    assert circles(graph()) == []

"""What may import what: the direction of imports, and that a config is checked without torch."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import nemo_algos

PACKAGE = Path(__file__).parents[1] / "nemo_algos"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
}
HEAVY = ("torch", "transformers", "ray", "nemo_rl", "megatron", "matplotlib", "sympy")
READERS = ("omegaconf", "yaml")
FINDINGS = {"findings", "secrets"}
GROUND = {
    *FINDINGS,
    *{"config", "extras", "interpolation"},
    *{"jsonl", "page", "processes", "style", "terminal", "untrusted"},
}
# what a room may import of ours; a room is a module of the ground floor, or what lies in a wing
ALLOWED = {
    "page": set(),
    "processes": set(),
    "style": set(),
    "untrusted": set(),
    "terminal": {"untrusted"},
    "secrets": set(),
    "findings": {"secrets"},
    "extras": {"findings"},
    "interpolation": FINDINGS,
    "config": {"findings", "interpolation"},
    "jsonl": {"findings", "untrusted"},
    "algorithms.shapes": set(),
    "algorithms.core": {"algorithms.core", "algorithms.shapes"},
    "algorithms.rollouts": {"algorithms.core", "algorithms.shapes"},
    # its table of names has `countdown`, and those that run code
    "engines.rewards": {"engines.rewards", "engines.data", "engines.execution", "findings"},
    "engines.execution": {"engines.execution", "engines.rewards"},
    "engines.data": {
        *{"engines.data", "engines.rewards"},
        *{"extras", "findings", "jsonl", "untrusted"},
    },
    "engines.adapters": {"engines.adapters", *nemo_algos.__all__},
}
# and the wings, each what stands below it; a room of its own wing only where ALLOWED has it
WINGS = ["algorithms", "engines", "preflight", "lab", "cli"]
NEIGHBOURS = {"preflight", "lab"}
APART = {
    "engines.nemo": {"engines.local", "engines.data"},
    "engines.local": {"engines.nemo", "engines.adapters"},
    "preflight.forecast": {"preflight.check", "preflight.plan", "preflight.slurm"},
    "preflight.check": {"preflight.plan", "preflight.slurm"},
    "preflight.plan": {"preflight.slurm"},
    "lab.evals": {"lab.report", "lab.mismatch"},
    "lab.report": {"lab.mismatch"},
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


def named(source):
    """Every module of ours that is a text, such as "package.module:NAME"."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.fullmatch(r"nemo_algos(\.\w+)+(:\w+)?", text):
            module = text.partition(":")[0]
            while module not in MODULES:
                module = module.rpartition(".")[0]
            found |= {module} - {"nemo_algos"}
    return found


def room(name):
    """Of nemo_algos.algorithms.core.dual it is algorithms.core, of nemo_algos.config config."""
    parts = name.split(".")[1:]
    return ".".join(parts[: 1 + (parts[0] in WINGS[:-1])])


def rooms(found):
    """The rooms of our package among these modules."""
    return {room(name) for name in found if name.startswith("nemo_algos.")}


@cache
def room_and_imports(path):
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return room(module), imports(path.read_text(), module)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import nemo_algos.algorithms.core.dual", {"algorithms.core"}),
        ("from nemo_algos import style, config", {"style", "config"}),
        ("from nemo_algos.algorithms.build import build", {"algorithms.build"}),
        ("def f():\n    from nemo_algos.engines.local import run", {"engines.local"}),
        (
            "if TYPE_CHECKING:\n    from nemo_algos.algorithms.rollouts import Rollouts",
            {"algorithms.rollouts"},
        ),
        ("from . import groups", {"algorithms.core"}),
        ("from ...engines.local.run import run", {"engines.local"}),
        ("from ... import config", {"config"}),
        ("import torch, nemo_algos_other.core", set()),
    ],
)
def test_every_form_of_import_is_seen(source, found):
    assert rooms(imports(source, "nemo_algos.algorithms.core.dual")) == found


def test_a_module_named_in_a_text_is_seen():
    source = 'NAMED = {"a": "nemo_algos.lab.report.runs:read_run"}\nRECORD = "nemo_algos.json"'
    assert rooms(named(source)) == {"lab.report"}


def test_direction_of_imports():
    """Of what is named in a text, too: it is imported later."""
    for path in FILES:
        own, found = room_and_imports(path)
        used = {r for r in rooms(found | named(path.read_text())) if r} - {own}
        if own in ALLOWED:
            assert used <= ALLOWED[own], f"{path}: {own} may not import {used - ALLOWED[own]}"
            continue
        wing = {"__init__": "algorithms", "__main__": "cli"}.get(own, own.partition(".")[0])
        below = GROUND | {*WINGS[: WINGS.index(wing) + 1]} | {*nemo_algos.__all__}
        below -= NEIGHBOURS - {wing} if wing in NEIGHBOURS else set()
        assert {r.partition(".")[0] for r in used} <= below, path
        assert not used & APART.get(own, set()), path


def test_only_nemo_imports_nemo_rl_and_ray():
    for path in FILES:
        own, found = room_and_imports(path)
        foreign = {name.split(".")[0] for name in found} & {"nemo_rl", "ray", "megatron"}
        may = {"engines.nemo": foreign, "engines.adapters": {"megatron"}}.get(own, set())
        may |= foreign if "preflight/check/data" in path.as_posix() else set()
        assert foreign <= (may | ({"nemo_rl"} if path.name == "launcher.py" else set())), path


def test_the_rooms_are_there():
    """So that a renamed folder does not pass unseen."""
    assert {*ALLOWED, *APART, *GROUND, "cli"} <= {room_and_imports(path)[0] for path in FILES}
    assert len(FILES) > 30


def modules(wing):
    """The names of all modules below a folder of the package."""
    paths = (PACKAGE / wing).rglob("*.py")
    return sorted(".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in paths)


def loaded(code):
    """Which of the heavy modules are loaded after the code, in a fresh interpreter."""
    code = f"{code}\nimport sys; print(*(m for m in {HEAVY + READERS} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (
            "import nemo_algos.config, nemo_algos.algorithms.methods, nemo_algos.algorithms.build\n"
            "import nemo_algos.engines.rewards, nemo_algos.engines.data.tasks\n"
            "import nemo_algos.engines.data.tasks\n"
            "from nemo_algos.cli import COMMANDS, load_command\n"
            "for name in COMMANDS: load_command(name)\n"
            "import nemo_algos; dir(nemo_algos); lazy = {'Counts', 'Rollouts', 'prompt_key', "
            "'rank_counts', 'rank_signals', 'rank_stats', 'sequence_mean'}\n"
            "for name in {*nemo_algos.__all__} - lazy: getattr(nemo_algos, name)\n"
            "nemo_algos.build({'name': 'erpo', 'bounds': 'etr'})",
            [*READERS],
        ),
        (
            "from nemo_algos import batch_loss\n"
            "from nemo_algos.preflight.check.judge import check\n"
            "for name in ('recipes/qwen3-32b-4n8g-tp4pp4.yaml', 'etr.yaml'): check(name, [])\n"
            "check('nemo_rl.yaml', ['policy.optimizer.nam=1'])",
            [*READERS],
        ),
        ("import nemo_algos.lab.evals.metrics, nemo_algos.lab.report.compare", [*READERS]),
        ("import nemo_algos.algorithms.build; nemo_algos.algorithms.build.build('etr')", []),
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
        found = room_and_imports(path)[1]
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


HOST = """
import sys
from importlib import import_module
import torch

def state():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("omegaconf", "torch", "yaml", "pydantic", "typer"):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = id(value)
            if isinstance(value, type):
                found |= {(name, key, k): id(v) for k, v in list(vars(value).items())}
    return found

def changed_by(names):
    before = state()
    for name in names:
        import_module(name)
    after = state()
    return {key for key in before if after.get(key) != before[key]}

changed = changed_by(name for name in sys.argv[1:] if name.startswith("nemo_algos.algorithms"))
print(*(m for m in LOADED if m in sys.modules))
import omegaconf, omegaconf.basecontainer
print(*sorted(changed | changed_by(sys.argv[1:])))
"""

# of NeMo-RL, Ray or a process of their own
SCRIPTS = ("launcher", "check/data", "scripts/", "__main__", "sandbox/", "worker.py")


def test_no_import_of_ours_changes_another_library():
    """And the algorithms load none of the heavy ones but torch."""
    absent = ("engines.nemo", "engines.adapters")  # of trainers that are not installed here
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in FILES
        if room_and_imports(path)[0] not in absent
        and not any(part in path.as_posix() for part in SCRIPTS)
    ]
    assert {*modules("algorithms")} <= {*names}
    code = HOST.replace("LOADED", repr(HEAVY + READERS))
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    loaded, changed = done.stdout.split("\n")[:2] if done.stdout else ("", "")
    assert (done.returncode, loaded, changed) == (0, "torch", ""), done.stderr[-2000:]


def test_a_hosts_own_config_has_no_limit():
    code = """
import nemo_algos, nemo_algos.interpolation, threading
from omegaconf import OmegaConf
big = OmegaConf.create({"text": "x" * 4_100_000, "again": "${text}"})
found = []
with nemo_algos.interpolation.limited():
    thread = threading.Thread(target=lambda: found.append(len(big.again)))
    thread.start(); thread.join()
    try:
        big.again
    except Exception as error:
        found.append(type(error).__name__)
print(len(big.again), *found)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4100000", "4100000", "InterpolationResolutionError"]

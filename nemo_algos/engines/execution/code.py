"""The reward of a program: whether it passes its tests, in a sandbox that it cannot talk to."""

import ast
import builtins
import json
import re
import sys
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from nemo_algos.engines.execution.sandbox import Handle, Program, Sandbox, SandboxError
from nemo_algos.engines.rewards.pool import PATIENCE

SECONDS = 4.0  # of CPU time, for a program in all; below VerifierPool's default deadline
SCRIPT = "__main__"  # the entry point of a program that reads stdin and writes stdout

FENCE = re.compile(r"([ \t>]*+)(`{3,}+|~{3,}+)([^`]*+)")
SINGLE = re.compile(r"(?<!`)`{3}(python3?|py|sql|sqlite)[ \t]+([^`]+(?:`{1,2}[^`]+)*)```", re.I)
ITEM = re.compile(r"\s*+(?:[-*+]|\d{1,9}[.)])\s++")  # of a list


def verify_code(response: str, answer: str) -> float:
    """1.0 where the program in `response` passes the tests, else 0.0.

    `answer` is JSON: `prompt`, trusted code before the program (may be empty); `entry_point`, the
    function under test, or "__main__", which runs the whole program on stdin's text and gives what
    it writes to stdout; `tests`, trusted code that runs as it stands and fails by raising; and, if
    the default of 4 is wrong, `seconds` of CPU time for the program, which it may use within ten
    times that of wall time.

    The program is the response's code (`code_block`) after the prompt; where it does not define the
    entry point, it continues the prompt's text. It runs in another process (`sandbox`) and
    the tests run here. A name in the tests means, in this order: the entry point, in the program;
    what tests or prompt define; a builtin; as `name.attribute`, a module of the standard library;
    else the program's.

    Raises ValueError where the tests never call the program, or with what is no plain data or above
    16 MiB, TimeoutError where it took too long, RuntimeError where it was killed from outside, or,
    as SandboxError, where the sandbox is broken (the next call starts another).
    """
    problem = json.loads(answer)
    seconds = problem.get("seconds", SECONDS)
    trusted = _problem(problem["prompt"], problem["tests"], problem["entry_point"])
    sources = program_of(response, problem["prompt"], problem["entry_point"])
    try:
        with _sandbox().program(seconds) as program:
            passed = _passes(program, sources, trusted)
    except SandboxError:
        _sandbox.cache_clear()
        raise
    failures = {
        "late": TimeoutError(f"the program used up its {seconds:g} s of CPU time"),
        "stuck": TimeoutError(f"the program did not answer in {seconds * PATIENCE:g} s: it waits"),
        "misused": ValueError(
            "The tests pass more than 16 MiB, or other values than numbers, texts and lists."
        ),
        "killed": RuntimeError(
            "The program was killed from outside. Check that the machine has enough memory."
        ),
    }
    if program.failure in failures:
        raise failures[program.failure]
    return float(passed and not program.failure)


def program_of(response: str, prompt: str, entry_point: str) -> list[str]:
    """The program's sources, to run one after the other in one module."""
    code = code_block(response, entry_point)
    continues = entry_point and not _defines(code, entry_point)
    if continues:
        return [prompt + code]
    return [prompt, code]


def protections() -> list[str]:
    """What protects this machine from programs here, in words (sandbox/README.md)."""
    return _sandbox().protections


def code_block(text: str, entry_point: str = "") -> str:
    """The last fenced block that defines `entry_point`, else the last block, else all of `text`."""
    codes = [code for _, code in blocks(text)]
    defining = []
    for code in codes:
        if entry_point and _defines(code, entry_point):
            defining.append(code)
    return (defining or codes or [text])[-1]


def blocks(text: str) -> list[tuple[str, str]]:
    """The first word behind the fence, in lower case, and the content of each fenced block.

    As in CommonMark, and as models write: a fence may stand behind text, or close at the end of the
    last line; one that names a language closes an open block; ```` ```sql SELECT 1``` ```` is one.
    """
    found: list[tuple[str, list[str]]] = []
    fence = ""
    margin = ""
    for line in text.split("\n"):
        inside = bool(fence)
        line = line.removeprefix(margin if line.startswith(margin) else margin.rstrip(" \t"))
        alone = FENCE.fullmatch(line)
        # a closing fence that is indented by 4 columns or more belongs to a docstring
        depth = len(alone[1].expandtabs(4)) if alone else 0
        if inside and not (alone and alone[2].startswith(fence) and depth < 4):
            ends = line.rstrip().endswith(fence) and line.count(fence) == 1
            if not alone and "`" in fence and ends:
                line = line.rstrip().rstrip("`")
                fence = ""
                margin = ""
            found[-1][1].append(line)
            continue
        start, fence, info = alone.groups() if alone else _behind_text(line)
        single = SINGLE.search(line)
        if inside and not re.fullmatch(r"\w+", info.strip()):
            fence = ""
            margin = ""
        elif fence:
            margin = margin if inside else start
            found.append((info.strip().partition(" ")[0].lower(), []))
        elif single:
            found.append((single[1].lower(), [single[2]]))
    return [(mark, "\n".join(lines) + "\n") for mark, lines in found]


def _behind_text(line: str) -> tuple[str, str, str]:
    """Margin, fence and info of a block that opens at the end of `line`, else empty."""
    before, fence, info = line.partition("```")
    if not re.fullmatch(r"`*+\w*+\s*+", info):
        return "", "", ""
    return " " * len(before) if ITEM.fullmatch(before) else "", fence, info.lstrip("`")


def _defines(code: str, name: str) -> bool:
    return bool(re.search(rf"^(?:(?:async )?def |class |(?={name} *=(?!=))){name}\b", code, re.M))


@cache
def _sandbox() -> Sandbox:
    return Sandbox()


def _passes(program: Program, sources: list[str], problem: "_Problem") -> bool:
    namespace = problem.namespace(program)
    try:
        program.run(sources, script=problem.entry_point == SCRIPT)
        exec(problem.tests, namespace)
    except MemoryError:
        raise  # the judge's own, see sandbox/program.py
    except Exception:
        return False
    if not program.asked:
        raise ValueError("The tests never call the program, so anything would pass. Add the call.")
    return True


class _Problem:
    """Trusted code, compiled once for all responses: what the tests need, and the tests."""

    def __init__(self, prompt: str, tests: str, entry_point: str):
        tree = ast.parse(tests)
        # optimize=0: asserts stay, whatever PYTHONOPTIMIZE says
        self.tests = compile(tree, "<tests>", "exec", dont_inherit=True, optimize=0)
        self._prompt = compile(prompt, "<prompt>", "exec", dont_inherit=True, optimize=0)
        self.entry_point = entry_point
        names = []
        owners = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                names.append(node)
            if isinstance(node, ast.Attribute):
                owners.add(node.value)
        # A program's own `abs` or `math` would decide `math.fabs(f(1) - 2) < 0.1`.
        free = set()
        bare = set()
        for node in names:
            if not hasattr(builtins, node.id):
                free.add(node.id)
            if node not in owners:
                bare.add(node.id)
        self._modules = (free - bare) & sys.stdlib_module_names
        self._asked = free - self._modules

    def namespace(self, program: Program) -> dict[str, Any]:
        """Globals for `tests`, with stand-ins for what is the program's."""
        namespace: dict[str, Any] = {}
        for name in self._asked:
            namespace[name] = Handle(program, name)
        namespace |= {name: import_module(name) for name in self._modules}
        namespace["__name__"] = "tests"
        exec(self._prompt, namespace)
        if self.entry_point:
            namespace[self.entry_point] = Handle(program, self.entry_point)
        return namespace


_problem = lru_cache(maxsize=256)(_Problem)

"""verify_code: which programs earn the reward, and what tests may do with a program."""

import json
import socket

import pytest
from says import Says

from nemo_algos.engines.execution.code import _sandbox, code_block, protections, verify_code
from nemo_algos.engines.execution.sandbox import Sandbox, SandboxError, plain, program
from nemo_algos.engines.rewards import VerifierPool

RIGHT = "def f(x):\n    return x + 1\n"
DOCUMENTED = """def f(x):
    '''So:

    ```python
    f(1)
    ```
    '''
    return x + 1
"""
NEWLINE = "\n"
WRONG = "def f(x):\n    return x + 2\n"


def verify(response, tests, entry_point="f", prompt="", **more):
    problem = {"prompt": prompt, "entry_point": entry_point, "tests": tests}
    return verify_code(response, json.dumps(problem | more))


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (RIGHT, 1.0),
        (WRONG, 0.0),
        (f"Here it is.\n```python\n{RIGHT}```\nDone.", 1.0),
        (f"```python\n{WRONG}```\nNo:\n```python\n{RIGHT}```", 1.0),
        (f"```python\n{RIGHT}```\nNo:\n```python\n{WRONG}```", 0.0),
        (f"```python\n{RIGHT}```\nUse it so:\n```\nprint(f(1))\n```", 1.0),
        (f"1. So:\n   ```py\n   {RIGHT.replace(chr(10), chr(10) + '   ')}\n   ```", 1.0),
        (f"```python\n{RIGHT}", 1.0),  # cut before the fence
        ("f = lambda x: x + 1", 1.0),
        (f"```python\n{RIGHT.rstrip()}```", 1.0),
        (f"It is: ```python\n{RIGHT}```\nDone.", 1.0),
        (f"~~~python\n{RIGHT}~~~\nDone.", 1.0),
        (f"\t```python\n\t{RIGHT.replace(NEWLINE, NEWLINE + chr(9))}\n\t```\nDone.", 1.0),
        (f"> ```python\n> {RIGHT.replace(NEWLINE, NEWLINE + '> ')}\n> ```\n> Done.", 1.0),
        (f"1. ```python\n   {RIGHT.replace(NEWLINE, NEWLINE + '   ')}\n   ```\nDone.", 1.0),
        (f"```python\n{WRONG}```python\n{RIGHT}```\nDone.", 1.0),
        (f"```python\n{RIGHT}``` So it is.\nDone.", 1.0),
        (f"```python\n{RIGHT}```\nHere ```f(x)``` is x + 1.", 1.0),
        (f"````\n{RIGHT}'''\n```\n'''\n````\nDone.", 1.0),
        (f"```python\n{DOCUMENTED}```\nDone.", 1.0),
        ("```python f = lambda x: x + 1```", 1.0),
        ("```python\ng = 1\n```", 0.0),
        ("I do not know.", 0.0),
        ("", 0.0),
        (f"{RIGHT}\nif __name__ == '__main__':\n    raise SystemExit(f(1))", 1.0),
        ("def f(x):\n    raise ValueError", 0.0),
        (f"import numpy\n{RIGHT}", 0.0),  # the standard library alone
        (f"print(input())\n{RIGHT}", 0.0),
        (f"import sys, zlib, json\nfrom collections import deque\n{RIGHT}", 1.0),
        (f"from __future__ import annotations\nimport dataclasses\n{RIGHT}", 1.0),
    ],
)
def test_reward(response, reward):
    assert verify(response, "assert f(1) == 2\nassert f(-1) == 0") == reward


@pytest.mark.parametrize("response", ["    return x + 1\n", f"```python\n{RIGHT}```"])
def test_prompt_is_continued_or_precedes(response):
    prompt = "import math\ndef g(x):\n    return -x\ndef f(x):\n    '''One more.'''\n"
    assert verify(response, "assert f(g(1)) == 0 and math.floor(f(1.5)) == 2", prompt=prompt) == 1.0


def test_code_block():
    text = "a\n```python\ndef f(): 1\n```\n```\nx = 1\n```\n```python\ndef fg(): 2\n```"
    assert code_block(text, "f") == "def f(): 1\n"
    assert code_block(text) == code_block(text, "h") == "def fg(): 2\n"
    assert code_block("def f(): 1", "f") == "def f(): 1"
    assert code_block("```\nasync def f(): 1\n```\n```\nf == 1\n```", "f") == "async def f(): 1\n"


@pytest.mark.parametrize(
    "value",
    [
        *("None", "True", "-1", "1.5", "float('-inf')", "2 + 3j", "'\\ud800 \\0'", "b'\\xff\\0'"),
        *(
            "[1, [2.0, ()]]",
            "(1, (2,))",
            "{1, 2}",
            "frozenset({1})",
            "{(1, 2): {'a': None}, 3: []}",
        ),
        *("10 ** 5000", "-(10 ** 700)", "int", "0.1 + 0.2", "[{'d': 1}]", "{'r': 0}"),
        *("range(3, 0, -1)", "bytearray(b'\\xff')", "__import__('collections').deque([1, (2,)])"),
        *(f"__import__('datetime').{day}" for day in ("date(2024, 2, 29)", "datetime(1, 2, 3, 4)")),
        *(f"__import__('datetime').{time}" for time in ("time(7, 30)", "timedelta(-1, 2, 3)")),
        *("{1: 2}.keys()", "{1: [2]}.items()"),
        *("__import__('decimal').Decimal('1.10')", "__import__('fractions').Fraction(1, 3)"),
    ],
)
def test_plain_data_goes_both_ways(value):
    tests = f"v = {value}\nr = f(v)\nassert type(r) is type(v) and repr(r)[:99] == repr(v)[:99]"
    tests = tests.replace("repr(r)[:99] == repr(v)[:99]", "r == v") if "**" in value else tests
    assert verify("def f(x): return x", tests) == 1.0
    assert verify(f"def f(x): return x == {value}", tests.replace("r == v", "r")) == float(
        value == "True"
    )
    assert verify(f"def f(x): return x == {value}", f"assert f({value}) is True") == 1.0


def test_subclasses_arrive_as_their_builtin_type():
    program = """
from collections import Counter, namedtuple
def f(): return [Counter('aab'), namedtuple('P', 'x')(1), type('N', (int,), {})(3)]
"""
    tests = "r = f()\nassert r == [{'a': 2, 'b': 1}, (1,), 3]\n"
    types = "assert [type(part) for part in r] == [dict, tuple, int]"
    assert verify(program, tests + types) == 1.0


def test_objects_of_the_program():
    program = """
class Node:
    def __init__(self, value): self.value, self.next = value, None
    def __len__(self): return 1 + len(self.next or ())
    def double(self, by=2): return self.value * by
    def __eq__(self, other): return True
def total(node): return node.value + total(node.next) if node else 0
def numbers(n): yield from range(n)
class Nothing:
    def __bool__(self): return False
"""
    tests = """
head = Node(1)
head.next = Node(2)
head.next.value += 3
assert total(head) == 6 and len(head) == 2 and head.next.double(by=3) == 15
assert list(numbers(3)) == [0, 1, 2] and bool(head) and not Nothing()
assert head == head and head != head.next and head != 1 and not hasattr(head, "other")
"""
    assert verify(program, tests, entry_point="total") == 1.0
    assert verify(program, tests, entry_point="") == 1.0
    assert verify(program.replace("+ total", "- total"), tests) == 0.0


def test_what_a_test_asks_of_an_object_the_program_answers():
    program = """
class Yes(list):
    def __contains__(self, other): return True
    def __len__(self): return 3
    def __eq__(self, other): return True
    def count(self, other): return Yes()
made = Yes()
def f(x): return type("Other", (), dict(vars(Yes)))()
"""
    assert verify(program, "assert 3 in f(1) and len(f(1)) == 3") == 1.0
    for test in ("3 in list(f(1))", "f(1) == [3]", "f(1).count(3) == 1", "made.count(3) == 1"):
        assert verify(program, f"assert {test}") == 0.0
    assert verify("def assert_eq(*_): pass\ndef f(x): return 0", "assert_eq(f(1), 2)") == 1.0


def test_objects_of_the_program_derived_from_builtins():
    program = """
from collections import Counter, OrderedDict, namedtuple
class Cache(OrderedDict):
    def put(self, key, value): self[key] = value; self.move_to_end(key, last=False)
class Stack(list):
    def top(self): return self[-1]
    def __str__(self): return f"Stack of {len(self)}"
class Bag(Counter):
    def add(self, key): self[key] += 1; return self
Point = namedtuple("Point", "x y")
def f(x): return Point(x, x + 1)
"""
    tests = """
cache, stack, point = Cache(), Stack([1, 2]), Point(1, 2)
cache.put("b", 1)
cache["a"] = 2
stack.append(3)
assert "b" in cache and "c" not in cache and cache["a"] == 2 and list(cache) == ["b", "a"]
assert stack.top() == 3 and len(stack) == 3 and str(stack) == "Stack of 3" == f"{stack}"
assert (point.x, point[1], *point) == (1, 2, 1, 2) and f(1) == (1, 2)
assert Bag("aab").add("a") == {"a": 3, "b": 1}
numbers = iter(stack)
assert next(numbers) == 1 and list(numbers) == [2, 3] and next(numbers, None) is None
"""
    assert verify(program, tests) == 1.0
    assert verify(program.replace("{len", "{1 + len"), tests) == 0.0


def test_arguments_change_in_place_where_the_call_returns_none():
    tests = "xs, d, s = [3, 1, 2], {1: 1}, {1}\nassert f(xs, d, more=1) is None\n"
    program = "def f(xs, d, more): xs.sort(); d[2] = 2; "
    check = "assert (xs, d) == ([1, 2, 3], {1: 1, 2: 2})"
    assert verify(program, tests + check) == 1.0
    tests = "import collections\nq, b = collections.deque([1]), bytearray(b'1')\nf(q, b)\n"
    program = "def f(q, b): q.append(2); b.append(50)"
    assert verify(program, tests + "assert list(q) == [1, 2] and b == b'12'") == 1.0
    # else a program could empty what the test compares with
    tests = "xs = [3, 1]\nassert f(xs) == sorted(xs)"
    assert verify("def f(xs): xs.clear(); return []", tests) == 0.0


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(xs): xs.sort()", "f(a); assert a == [1, 2, 3]"),
        ("def f(xs): xs.sort()", "f(xs=a); assert a == [1, 2, 3]"),
        ("def f(n, *, xs): xs.append(n)", "f(4, xs=a); assert a == [3, 1, 2, 4]"),
        ("def f(*xs): xs[0].sort(); xs[1].clear()", "b = [1]; f(*[a, b]); assert a[0] > len(b)"),
        ("def f(**k): k['a'].sort()", "f(**{'a': a, 'b': 1}); assert a == [1, 2, 3]"),
        ("def f(xs): xs[0].sort()", "b = [a, 1]; f(xs=b); assert b == [[1, 2, 3], 1]"),
        ("def f(xs): xs[0].sort()", "f((a, 1)); assert a == [1, 2, 3]"),
        ("def f(d): d['x'].append(1)", "d = {'x': []}; f(d=d); assert d == {'x': [1]}"),
        (
            "def f(d): d[1] = 2",
            "import collections as c; d = c.defaultdict(int); f(d); assert d == {1: 2}",
        ),
        ("def f(s): s.add(1)", "s = set(); f(s=s); assert s == {1}"),
        (
            "class f:\n  def __init__(self): self.n = []\n  def to(self, out): out += self.n\n"
            "  def put(self, n): self.n += n",
            "b = []; s = f(); s.put(n=a); s.to(out=b); assert b == a == [3, 1, 2]",
        ),
    ],
)
def test_every_kind_of_argument_changes_in_place(program, tests):
    assert verify(program, f"a = [3, 1, 2]\n{tests}") == 1.0


@pytest.mark.parametrize(
    ("raised", "caught", "reward"),
    [
        ("ValueError('bad')", "ValueError as e: assert str(e) == 'bad'", 1.0),
        ("type('Mine', (KeyError,), {})()", "LookupError: pass", 1.0),
        ("ValueError", "TypeError: pass", 0.0),
        ("Exception", "ValueError: pass", 0.0),
        ("SystemExit", "Exception: pass", 1.0),
        ("SystemExit", "SystemExit: pass", 0.0),
    ],
)
def test_exceptions_travel(raised, caught, reward):
    tests = f"try:\n    f(1)\nexcept {caught}\nelse: assert False"
    assert verify(f"def f(x): raise {raised}", tests) == reward


def test_what_a_test_swallows_still_fails():
    tests = "try: f(1)\nexcept BaseException: pass"
    assert verify("def f(x): raise ValueError", tests) == 1.0
    assert verify("import os\ndef f(x): os._exit(0)", tests) == 0.0


def test_names_of_the_tests():
    assert verify("def sum(a, b): return a * b", "assert sum(2, 3) == 6", entry_point="sum") == 1.0
    # without an entry point a builtin stays one, and a module is the real one
    assert verify("def sum(a): return 9", "assert sum([1]) == 9 and f(1)", entry_point="") == 0.0
    program = "class math:\n    floor = lambda x: 7\ndef f(x): return x"
    assert verify(program, "assert math.floor(f(1.5)) == 1") == 1.0


def test_asserts_count_whatever_python_is_told(monkeypatch):
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    tests = "f(1)\nassert f(1) == 2"
    answer = json.dumps({"prompt": "", "entry_point": "f", "tests": tests})
    with VerifierPool("nemo_algos.engines.execution.code:verify_code") as pool:
        assert [v.reward for v in pool.score([WRONG, RIGHT], [answer] * 2)] == [0.0, 1.0]


def test_late_program(monkeypatch):
    sleep = "import time\ntime.sleep(60)"
    with pytest.raises(TimeoutError, match=r"0\.5 s"):
        verify(sleep, "f(1)", seconds=0.05)
    monkeypatch.setattr(program, "PATIENCE", 1e4)
    with pytest.raises(TimeoutError, match=r"used up its 0.2 s of CPU time"):
        verify("def f(x):\n    while True: pass", "try: f(1)\nexcept: pass", seconds=0.2)


def test_time_that_passes_without_computing_is_not_the_programs():
    waits = "import time\ndef f(x): time.sleep(0.6); return x + 1"
    assert verify(waits, "assert f(1) == 2", seconds=0.3) == 1.0


def test_cpu_time_of_all_calls_counts_together():
    computes = "import time\ndef f(x):\n    end = time.process_time() + x\n"
    computes += "    while time.process_time() < end: pass"
    assert verify(computes, "for _ in range(3): f(0.1)", seconds=1.0) == 1.0
    with pytest.raises(TimeoutError, match="CPU time"):
        verify(computes, "for _ in range(12): f(0.1)", seconds=1.0)


def test_killed_from_outside_is_no_wrong_answer():
    """As by a kernel that is out of memory."""
    with pytest.raises(RuntimeError, match="memory"):
        verify("import os\ndef f(): os.kill(os.getpid(), 9)", "f()")
    assert verify("import os\ndef f(): os.kill(os.getpid(), 15)", "f()") == 0.0
    assert verify(RIGHT, "assert f(1) == 2") == 1.0


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("def check(f): assert f(1) == 2", "call"),
        ("f(object())", "numbers"),
        ("try: f('a' * (1 << 24))\nexcept: pass", "16 MiB"),
        ("try: f(lambda: 1)\nexcept: pass", "numbers"),
    ],
)
def test_tests_that_judge_nothing_are_refused(tests, reason):
    with pytest.raises(ValueError, match=reason):
        verify(RIGHT, tests)


def test_broken_tests_are_an_error():
    with pytest.raises(SyntaxError):
        verify(RIGHT, "assert f(1 == 2")
    with pytest.raises(SyntaxError):
        verify(RIGHT, "assert f(1) == 2", prompt="def g(:")


def test_same_order_of_a_set_in_every_sandbox():
    source = "def f(): return ''.join({chr(97 + i) * 3 for i in range(20)})"
    answers = set()
    for _ in range(2):
        sandbox = Sandbox()
        with sandbox.program(5.0) as program:
            program.run([source])
            answers.add(program.ask("call", plain_handle(program)))
        sandbox.close()
    assert len(answers) == 1


def plain_handle(program):
    return plain.decode({"r": "f"}, program._handle)


def test_broken_sandbox_is_replaced():
    assert verify(RIGHT, "assert f(1) == 2") == 1.0
    _sandbox()._control.shutdown(socket.SHUT_RDWR)
    with pytest.raises(SandboxError):
        verify(RIGHT, "assert f(1) == 2")
    assert verify(RIGHT, "assert f(1) == 2") == 1.0


def test_protections_are_named():
    assert protections()[0] == Says("limits processes")


@pytest.mark.parametrize(
    "data",
    [
        *({"x": [1]}, {"i": 5}, {"D": "x"}, {"T": "eval"}, {"F": [1, 0]}, {}, {"t": [1], "s": [2]}),
        *({"R": [0, 1 << 40, 1]}, {"R": [1]}, {"dt": 5}, {"da": "x"}, {"B": "\u0100"}, {"q": 1}),
        *({"dk": [[1]]}, {"di": [1]}, {"dv": 1}, {"ti": "25:00"}, {"td": ["1"]}, {"td": 1}),
        *({"d": [[[1], 2]]}, {"s": [[1]]}, {"r": [1]}, {"c": [1, 2, 3]}, {"b": "\u0100"}),
    ],
)
def test_forged_data_is_refused(data):
    def resolve(reference):
        if not isinstance(reference, int | str):
            raise ValueError(reference)

    with pytest.raises((ValueError, TypeError, LookupError, ArithmeticError)):
        plain.decode(data, resolve)

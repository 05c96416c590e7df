"""Programs as people write them (ordinary_programs.txt) run, in every situation."""

import sys
from pathlib import Path

import pytest
from situations import reward

# name: (program, tests)
ORDINARY = {
    name: tuple(both.split("\n---\n"))
    for text in Path(__file__).with_name("ordinary_programs.txt").read_text().split("=== ")[1:]
    for name, both in [text.split("\n", 1)]
}
# Of a second of CPU time, or much memory, which takes longer on a busy machine.
LARGE = {
    "half a gigabyte": "def f(): return len(bytearray(500 << 20)) == 500 << 20",
    "half a gigabyte of ones": "def f(): return (b'1' * (500 << 20)).count(b'1') == 500 << 20",
    "ten million numbers": "def f(): return sum(list(range(10**7))[-2:]) == 2 * 10**7 - 3",
    "a second": "import time\ndef f():\n    while time.process_time() < 1: pass\n    return True",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the situations are Linux's")


def test_ordinary_programs_pass(judge):
    assert len(ORDINARY) >= 80
    earned = {name: judge.ask("reward", *given) for name, given in ORDINARY.items()}
    assert earned == dict.fromkeys(ORDINARY, 1.0)


@pytest.mark.parametrize("name", LARGE)
def test_large_programs_pass(name):
    assert reward(LARGE[name], "assert f() is True") == 1.0


def test_their_tests_fail_where_nothing_is_done():
    program = "class Stack:\n    def push(self, x): pass\ndef f(*_): return type('X', (), {})()"
    earned = {name: reward(program, tests) for name, (_, tests) in ORDINARY.items()}
    assert earned == dict.fromkeys(ORDINARY, 0.0)

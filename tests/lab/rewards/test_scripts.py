"""verify_code of whole programs, which read standard input and write standard output."""

import json

import pytest

from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.lab.rewards.code import verify_code
from nemo_algos.lab.rewards.remote import verify_code_remote

ECHO = "assert __main__('a\\nb c\\n') == 'a|b c'"
LOOP = "while True: pass"


def answer(tests, **more):
    return json.dumps({"prompt": "", "entry_point": "__main__", "tests": tests} | more)


@pytest.mark.parametrize(
    "program",
    [
        "print(input(), input(), sep='|', end='')",
        "import sys\nprint('|'.join(line.strip() for line in sys.stdin), end='')",
        "import sys\nsys.stdout.write('|'.join(sys.stdin.read().splitlines()))",
        "import sys\nsys.stdout.buffer.write(b'|'.join(sys.stdin.buffer.read().splitlines()))",
        "import os\nprint('|'.join(open(0).read().splitlines()), end='')\nexit(1)",
        "def main():\n  print(input() + '|' + input(), end='')\nif __name__ == '__main__': main()",
        "from __future__ import annotations\nprint(input() + '|' + input(), end='')\nquit()",
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\n"
        "print(input() + '|' + input(), end='')",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n  x: str\n"
        "print(P(input()).x + '|' + input(), end='')",
        "print('a|b c', end='')\nraise SystemExit('bye')",
        "import sys\nif len(sys.argv) > 1: sys.stdin = open(sys.argv[1])\n"
        "print(input() + '|' + input(), end='')",
        "import fileinput\nprint('|'.join(x.strip() for x in fileinput.input()), end='')",
    ],
)
def test_ways_to_read_and_write(program):
    assert verify_code(f"```python\n{program}\n```", answer(ECHO)) == 1


@pytest.mark.parametrize(
    "program",
    [
        "print('a|b c', end='')\nraise ValueError",  # written and then broken
        "import os\nprint('a|b c', end='', flush=True)\nos._exit(0)",
        "print(input(), input(), input())",  # no third line
        "print('a|b c'",
        "print('a|b c')",
        "import sys\nsys.stdout.write = lambda text: 1",
        "class S(str):\n  __eq__ = lambda *_: True\nprint(S('x'))",
        "import sys\nsys.modules['__main__'].__dict__['input'] = 1\nopen('x', 'w')",
        "",
    ],
)
def test_what_is_wrong(program):
    assert verify_code(program, answer(ECHO)) == 0


def test_each_run_begins_anew():
    counting = "try:\n  seen += 1\nexcept NameError:\n  seen = 1\nprint(seen)"
    assert verify_code(counting, answer("assert [__main__(''), __main__('')] == ['1\\n'] * 2")) == 1


def test_text_is_unicode_whatever_it_holds():
    tests = "assert __main__('\\u00e9\\ud800') == '\\u00e9?' * 2"
    assert verify_code("print(input() * 2, end='')", answer(tests)) == 1


def test_programs_that_never_end_hold_nothing_up():
    """In the pool: two that loop or wait, and those beside and behind them are judged."""
    programs = [LOOP, "print(input())", "import time\ntime.sleep(60)", "print(input())"]
    tests = answer("assert __main__('1\\n') == '1\\n'", seconds=0.25)
    with VerifierPool("code", workers=2) as pool:
        verdicts = pool.score(programs, [tests] * 4)
    assert [(v.reward, v.status) for v in verdicts] == [(0, "timeout"), (1, "ok")] * 2
    assert ["CPU" in verdicts[0].detail, "waits" in verdicts[2].detail] == [True, True]


def test_no_server_judges_them(monkeypatch):
    monkeypatch.setenv("NEMO_ALGOS_SANDBOX_URL", "http://localhost:1")
    with pytest.raises(ValueError, match="stdin"):
        verify_code_remote("print(1)", answer("assert __main__('') == '1'"))

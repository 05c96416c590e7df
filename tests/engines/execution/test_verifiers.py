"""verify_choice; verify_code of whole programs; verify_code_remote, against a server of ours."""

import json
import subprocess
import sys
from pkgutil import resolve_name
from types import SimpleNamespace

import completions
import httpx
import pytest

from nemo_algos.engines.execution.code import verify_code
from nemo_algos.engines.execution.remote import verify_code_remote
from nemo_algos.engines.rewards import Verdict, VerifierPool
from nemo_algos.engines.rewards.choice import verify_choice
from nemo_algos.engines.rewards.function import path_of


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"\boxed{B}", "B", 1),
        (r"\boxed{B}", "C", 0),
        ("Answer: A, Answer: B", "A", 0),
        ("The answer is no.", "no", 1),
        ("The answer is No.", "yes", 0),
        ("Answer: Yes", "Yes", 1),
        ("Answer: Y", "yes", 0),
        ("", "A", 0),
        ("", "no", 0),
    ],
)
def test_letters_and_yes_or_no(response, answer, reward):
    assert verify_choice(response, answer) == reward


@pytest.mark.parametrize("answer", ["", "b", "AB", "maybe", "4"])
def test_other_answers_than_a_letter_are_refused(answer):
    with pytest.raises(ValueError, match=r"letter A to Z"):
        verify_choice(r"\boxed{A}", answer)


# the last as in configs of before
@pytest.mark.parametrize("home", ["", "nemo_algos.engines.rewards.", "nemo_algos.lab.rewards."])
def test_choices_in_a_pool(home):
    with VerifierPool(f"{home}choice:verify_choice" if home else "choice") as pool:
        verdicts = pool.score(["Answer: A", "Answer: A", "Answer: A"], ["A", "yes", "42"])
    assert verdicts == [Verdict(1.0, "ok"), Verdict(0.0, "ok"), Verdict(0.0, "error")]


def test_where_verifiers_were_before():
    before = {"code:verify_code", "remote:verify_code_remote", "sql:verify_sql"}
    for name in before:
        assert resolve_name(path_of(f"nemo_algos.lab.rewards.{name}")).__name__ in name
    assert path_of("nemo_algos.lab.rewards.code:import_module").startswith("nemo_algos.lab.")


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


ANSWER = json.dumps(
    {"prompt": "ONE = 1\n", "entry_point": "f", "tests": "assert f(1) == 1 + ONE", "seconds": 1}
)
RIGHT = "```python\ndef f(x):\n    return x + ONE\n```"


def run(asked):
    command = [sys.executable, "-c", asked["code"]]
    try:
        done = subprocess.run(command, capture_output=True, timeout=asked["run_timeout"], text=True)
    except subprocess.TimeoutExpired:
        return reply("Failed", "TimeLimitExceeded")
    return reply("Failed" if done.returncode else "Success", "Finished", done.stdout)


def reply(status, run_status, stdout="", message=""):
    result = {"status": run_status, "return_code": 0, "stdout": stdout, "stderr": ""}
    return {"status": status, "message": message, "compile_result": None, "run_result": result}


@pytest.fixture
def server(monkeypatch):
    """It runs the code, or says `reply`; `seen`: what it was asked."""
    state = SimpleNamespace(reply=None)
    with completions.server(lambda asked: state.reply or (200, run(asked))) as (url, state.seen):
        monkeypatch.setenv("NEMO_ALGOS_SANDBOX_URL", url.removesuffix("v1"))
        yield state


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (RIGHT, 1.0),
        ("def f(x): return x", 0.0),
        ("def f(x): 1 / 0", 0.0),
        ("import sys\ndef f(x): sys.exit(0)", 0.0),
        ("import os\ndef f(x): os._exit(0)", 0.0),
        ("no code", 0.0),
    ],
)
def test_reward_by_a_server(server, response, reward):
    assert verify_code_remote(response, ANSWER) == reward


def test_request(server):
    verify_code_remote(RIGHT, ANSWER)
    ((path, _, asked),) = server.seen
    assert (path, asked["language"], asked["run_timeout"]) == ("/run_code", "python", 1)
    assert asked["code"].startswith("ONE = 1\n\n\ndef f(x):\n    return x + ONE\n")


def test_late_program(server):
    with pytest.raises(TimeoutError):
        verify_code_remote("def f(x):\n    while True: pass", ANSWER)


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        ((500, {}), httpx.HTTPStatusError),
        ((404, {}), httpx.HTTPStatusError),
        ((200, reply("SandboxError", "Error", message="no space left")), RuntimeError),
        ((200, {"status": "Success", "message": "", "run_result": None}), RuntimeError),
        ((200, {}), RuntimeError),
    ],
)
def test_failure_of_the_server_is_no_verdict(server, answered, error):
    server.reply = answered
    with pytest.raises(error):
        verify_code_remote(RIGHT, ANSWER)


def test_no_server(monkeypatch):
    monkeypatch.setenv("NEMO_ALGOS_SANDBOX_URL", "http://127.0.0.1:9")
    with pytest.raises(httpx.ConnectError):
        verify_code_remote(RIGHT, ANSWER)
    monkeypatch.delenv("NEMO_ALGOS_SANDBOX_URL")
    with pytest.raises(ValueError, match="NEMO_ALGOS_SANDBOX_URL"):
        verify_code_remote(RIGHT, ANSWER)


def test_pool_counts_failures_as_errors(server):
    with VerifierPool("nemo_algos.engines.execution.remote:verify_code_remote") as pool:
        good = pool.score([RIGHT], [ANSWER])
        server.reply = (503, {})
        bad = pool.score([RIGHT], [ANSWER])
    assert (good[0].reward, good[0].status) == (1.0, "ok")
    assert (bad[0].reward, bad[0].status) == (0.0, "error")

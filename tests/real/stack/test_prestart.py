"""A training program that is started before its config is known."""

import io
import json
import os
import sys
import types

import pytest
from rehearsal import machine, prestart
from rehearsal.training import Attempt

LINE = json.dumps([["train", "small.yaml", "a=1"], {"PLANTED": "here"}]) + "\n"


@pytest.mark.parametrize("line", [LINE, ""])
def test_it_runs_with_the_words_it_is_told_or_not_at_all(monkeypatch, line):
    seen = []
    monkeypatch.setitem(
        sys.modules, "nemo_algos.engines.nemo.launch", types.ModuleType("needs_nemo_rl")
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(line))
    monkeypatch.setattr(sys, "argv", ["ahead"])
    monkeypatch.setenv("PLANTED", "")
    run = lambda name, **_: seen.append((name, *sys.argv[1:], os.environ["PLANTED"]))  # noqa: E731
    monkeypatch.setattr(prestart.runpy, "run_module", run)
    prestart.main()
    assert seen == ([("nemo_algos", "train", "small.yaml", "a=1", "here")] if line else [])


@pytest.mark.parametrize(("program", "want"), [("print(input())", "small.yaml"), ("1 / 0", "Zero")])
def test_what_it_is_told_and_what_it_says_are_in_its_log(tmp_path, program, want):
    """Also where it has ended before its words came."""
    attempt = Attempt(tmp_path / "log", {machine.MARK: str(tmp_path)}, ["-c", program])
    if want == "Zero":
        attempt.process.wait(60)
    attempt.tell(["train", "small.yaml"], {})
    assert attempt.ended(60) == (want == "Zero")
    assert want in attempt.last_lines()


def test_the_end_of_a_log_is_the_programs_own_and_not_one_line_over_and_over(tmp_path):
    """A driver whose workers are gone says so hundreds of times after its traceback."""
    program = "print('why'); print('(Worker pid=7) later'); [print('gone') for _ in range(99)]"
    attempt = Attempt(tmp_path / "log", {machine.MARK: str(tmp_path)}, ["-c", program])
    attempt.ended(60)
    assert attempt.last_lines().splitlines() == ["why", "gone"]
    assert attempt.reason() == "gone"
    attempt.log.write_text(
        "pkg.mod.Error: first\nValueError: x\n  y\n(Worker pid=1) KeyError: z\nbye\n"
    )
    assert attempt.reason() == "ValueError: x"

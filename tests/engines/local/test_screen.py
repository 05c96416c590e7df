"""What a person sees: at 80 columns whole, and never what a model has written as an order."""

import io
import re

import pytest
from rich.console import Console

from nemo_algos.engines.local import screen
from nemo_algos.engines.local.evaluation import Shown
from nemo_algos.engines.local.screen import HELD_OUT, SHOWN, Screen

ROW = {
    "reward/mean": 0.482421875,
    "entropy/exact": 0.0009765625,
    "clip/fraction": 0.00081699346,
    "ratio/p99": 1.0672,
    "length/mean": 1023.98,
    "tokens_per_second": 19418.44,
    "reward/unverified": 512,
}


def seen(terminal, width=80):
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def test_the_table_is_whole_at_80_columns_and_stays():
    console = seen(True)
    with Screen(console, 0, 40) as shown:
        for step in range(1, 31):
            shown.step({"step": step, **ROW})
            if step % 10 == 0:
                shown.step({"step": step, HELD_OUT: 0.1234567})
    lines = re.sub("\x1b[^A-Za-z]*.", "", console.file.getvalue()).splitlines()
    header = max(i for i, line in enumerate(lines) if "tok/s" in line)
    last = lines[header:]
    assert all(name in last[0] for name in SHOWN)
    assert "…" not in "".join(last) and max(map(len, last)) <= 80
    rows = [line.split() for line in last if line.strip()[:2].isdigit()]
    assert [row[0] for row in rows] == [str(step) for step in range(19, 31)]
    assert rows[-1] == [
        "30",
        "0.482",
        "0.123",
        "0.00098",
        "0.00082",
        "1.07",
        "1024",
        "19418",
        "512",
    ]
    assert rows[0] == ["19", "0.482", "0.00098", "0.00082", "1.07", "1024", "19418", "512"]
    assert any("30/40" in line for line in last)


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed, for each look at the clock."""
    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    return now


def test_lines_every_10_steps_or_5_seconds_where_there_is_no_terminal(clock):
    console = seen(False, width=200)
    with Screen(console, 2, 14) as shown:
        for step in range(3, 15):
            clock[0] += 6 if step == 5 else 1
            shown.step({"step": step, "reward/mean": 0.5})
    assert console.file.getvalue().splitlines() == [
        "step 5/14  reward 0.5  0.4 min left",
        "step 10/14  reward 0.5  0.1 min left",
        "step 14/14  reward 0.5  0.0 min left",
    ]


def test_an_evaluation_speaks_at_once_and_every_5_seconds(clock):
    console = seen(False)
    shown = Screen(console, 0, 3)
    for _ in shown.track(range(7), "evaluating"):
        clock[0] += 2
    assert console.file.getvalue().splitlines() == [
        "evaluating",
        "evaluating: 3 of 7 parts done",
        "evaluating: 6 of 7 parts done",
    ]


@pytest.mark.parametrize(
    ("number", "rewards"), [(0, []), (1, [3]), (2, [3, 0]), (3, [3, 2, 0]), (9, [3, 2, 1, 0])]
)
def test_the_best_and_the_worst_responses(number, rewards):
    console = seen(False)
    responses = [Shown("p", "r", reward) for reward in (1, 3, 0, 2)]
    Screen(console, 0, 3).responses(responses, number)
    lines = re.sub("\x1b[^A-Za-z]*.", "", console.file.getvalue()).splitlines()
    assert [line for line in lines if "reward" in line] == [f"reward {r}" for r in rewards]


def test_a_response_gives_the_terminal_no_orders():
    console = seen(False)
    text = "\x1b[31mred\x07 \r\n[bold]no markup[/bold]\u202e" + "x" * 999
    Screen(console, 0, 3).responses([Shown("a\nb", text, 1.0)], 1)
    said = console.file.getvalue()
    assert said.splitlines()[:2] == ["reward 1", "  a b"]
    assert said.splitlines()[2].startswith("   [31mred    [bold]no markup[/bold] xxx")
    assert len(said) < 400 and said.replace("\n", "").isprintable()

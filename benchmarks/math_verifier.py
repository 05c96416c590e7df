"""verify_math on right, wrong, real and hostile answers, and many times in a row.

Right and wrong forms are of MATH500's golds, real ones pairs as models write them. Always in a
VerifierPool as it comes: a deadline of 5 s, 2 GB of memory.

    uv run benchmarks/math_verifier.py PATH/TO/math500.jsonl                  # JSONL, key "answer"
    uv run benchmarks/math_verifier.py PATH/TO/math500.jsonl --many 100000
    uv run benchmarks/math_verifier.py --pairs                   # math_pairs*.txt of this folder
    uv run benchmarks/math_verifier.py --hostile

--alone asks math-verify as NeMo-RL's HFVerifyWorker calls it, in place of verify_math.

--json prints the figures as one object, with the golds behind every count. A verdict that is not
"ok" counts as a rejection, and in "statuses".
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nemo_algos.engines.rewards import VerifierPool

VERIFIER = "nemo_algos.engines.rewards.math:verify_math"
ALONE = "math_verifier:math_verify_alone"  # this file
PAIRS = ("math_pairs.txt", "math_pairs_unseen.txt")  # beside this file
Form = Callable[[str], str | None]  # the response made of a gold; None where it does not apply

THINKING = "We first try small cases, where the pattern is easy to see. " * 100


def box(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


RIGHT: dict[str, Form] = {
    r"$\boxed{g}$ in a sentence": lambda g: f"The answer is ${box(g)}$.",
    r"\boxed{g}": box,
    r"\boxed{ g }": lambda g: box(f" {g} "),
    "$g$ in a sentence": lambda g: f"The answer is ${g}$.",
    r"\boxed, \dfrac": lambda g: box(g.replace(r"\frac", r"\dfrac")),
    r"\boxed, \tfrac": lambda g: box(g.replace(r"\frac", r"\tfrac")),
    r"\boxed, no \left, \right": lambda g: box(re.sub(r"\\(left|right)(?![a-z])", "", g)),
    "6 kB, an earlier box, the box": lambda g: f"{THINKING} Not {box('17')}. So {box(g)}.",
    "boxes close together": lambda g: f"Not ${box('17')}$ but ${box(g)}$.",
    "the box, 6 kB": lambda g: f"The answer is ${box(g)}$. {THINKING}",
    r"\[ g \]": lambda g: rf"\[ {g} \]",
    r"\boxed{x = g}": lambda g: box(f"x = {g}"),
    "bare g": lambda g: g,
    "bare g, wrapped as $g$": lambda g: f"${g}$",
}


def integers(change: Callable[[int], str]) -> Form:
    return lambda g: change(int(g)) if re.fullmatch(r"-?\d+", g) else None


def digit_changed(g: str) -> str | None:
    digit = None if re.fullmatch(r"-?\d+", g) else re.match(r"(.*)(\d)(.*)", g)
    return digit and box(f"{digit[1]}{(int(digit[2]) + 1) % 10}{digit[3]}")


def unit_changed(g: str) -> str | None:
    """Another power, radians for degrees, dollars for cents."""
    changed = g.replace(r" cm}^2", r" cm}^3").replace(r" inches}^2", r" inches}")
    changed = changed.replace(r"^\circ", r"\text{ radians}").replace(" cents", " dollars")
    changed = changed.replace(" degrees", " radians")
    return None if changed == g else box(changed)


WRONG: dict[str, Form] = {
    r"\boxed{g\%}": integers(lambda n: box(rf"{n}\%")),
    r"\boxed{100g\%}": integers(lambda n: box(rf"{100 * n}\%")),
    r"\boxed{g}\%": integers(lambda n: box(str(n)) + r"\%"),
    "$g$%": integers(lambda n: f"${n}$%"),
    "g percent": integers(lambda n: f"{n} percent"),
    r"\boxed{100g}": integers(lambda n: box(str(100 * n))),
    r"\boxed{g+1}": integers(lambda n: box(str(n + 1))),
    r"\boxed{-g}": integers(lambda n: box(str(-n))),
    r"\boxed{g, g+1}": integers(lambda n: box(f"{n}, {n + 1}")),
    "one digit changed": digit_changed,
    "unit changed": unit_changed,
    r"\boxed{\text{elephant}}": lambda g: box(r"\text{elephant}"),
    "an empty box": lambda g: box(""),
}


def math_verify_alone(response: str, answer: str) -> float:
    """As NeMo-RL's HFVerifyWorker calls it."""
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    latex = LatexExtractionConfig()
    verify = math_metric((latex,), (ExprExtractionConfig(), latex))
    return float(verify([box(answer)], [response])[0])


def accepted(pool: VerifierPool, golds: list[str], form: Form) -> dict[str, list[str]]:
    """The golds by verdict of the responses that the form makes of them."""
    pairs = [(made, gold) for gold in golds if (made := form(gold)) is not None]
    verdicts = pool.score([made for made, _ in pairs], [gold for _, gold in pairs])
    split: dict[str, list[str]] = {"accepted": [], "rejected": []}
    for verdict, (_, gold) in zip(verdicts, pairs, strict=True):
        split["accepted" if verdict.reward == 1 else "rejected"].append(gold)
    return split


def table(pool: VerifierPool, golds: list[str]) -> dict[str, Any]:
    """How many right forms are rejected, how many wrong ones accepted."""
    right = {name: accepted(pool, golds, form) for name, form in RIGHT.items()}
    wrong = {name: accepted(pool, golds, form) for name, form in WRONG.items()}
    return {"right": right, "wrong": wrong}


def read_pairs() -> Iterator[tuple[str, str, str, str]]:
    """Of each pair "right" or "wrong", its kind, the gold and the response."""
    kind = gold = ""
    texts = [Path(__file__).with_name(name).read_text() for name in PAIRS]
    for line in "\n".join(texts).split("\n"):
        mark, _, rest = line.replace("\u23ce", "\n").partition(" ")
        if mark == "#":
            kind = rest
        elif mark == "=":
            gold = rest
        elif mark in ("+", "-", "+>", "->"):
            response = rest if mark.endswith(">") else box(rest)
            yield "right" if mark[0] == "+" else "wrong", kind, gold, response


def pairs(pool: VerifierPool) -> dict[str, Any]:
    """How many right answers are rejected and wrong ones accepted, by kind, in all, and unseen."""
    rows = [*read_pairs()]
    verdicts = pool.score([row[3] for row in rows], [row[2] for row in rows])
    figures: dict[str, Any] = {"right": {}, "wrong": {}}
    for name in (*dict.fromkeys(row[1] for row in rows), "all", "unseen"):
        for truth in figures:
            figures[truth][name] = {"accepted": [], "rejected": []}
    for verdict, (truth, kind, gold, response) in zip(verdicts, rows, strict=True):
        judged = "accepted" if verdict.reward == 1 else "rejected"
        for name in (kind, "unseen" if kind.startswith("unseen: ") else "all"):
            figures[truth][name][judged].append(f"{response} for {gold}")
    return figures


def hostile(pool: VerifierPool) -> dict[str, Any]:
    """Seconds, status and the worker's peak memory of each hostile response, one at a time."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "engines" / "rewards"))
    from hostile_answers import HOSTILE  # pyright: ignore[reportMissingImports]

    pool.score([box("7")], ["7"])  # starts the worker
    rows = {}
    for name, response in HOSTILE.items():
        with peak_of_children() as peak:
            start = time.perf_counter()
            (verdict,) = pool.score([response], ["7"])
            seconds = time.perf_counter() - start
        rows[name] = {"seconds": round(seconds, 2), "status": verdict.status}
        rows[name] |= {"reward": verdict.reward, "peak_mb": peak[0], "detail": verdict.detail[:60]}
        pool.score([box("7")], ["7"])  # a killed worker's successor starts outside the clock
    return {"hostile": rows}


def many(pool: VerifierPool, golds: list[str], count: int) -> dict[str, Any]:
    """`count` verifications of all forms: rate, processes before, during and after, memory."""
    before = len(children())
    forms = product((*RIGHT.values(), *WRONG.values()), golds)
    pairs = [(made, gold) for form, gold in forms if (made := form(gold)) is not None]
    pairs = (pairs * (count // len(pairs) + 1))[:count]
    verdicts = pool.scores((made for made, _ in pairs), (gold for _, gold in pairs))
    start, memory = time.perf_counter(), []
    for _ in iter(lambda: sum(1 for _ in islice(verdicts, count // 10)), 0):
        memory.append([_status(pid, "VmRSS") for pid in sorted(children())])
    seconds = time.perf_counter() - start
    during = len(children())
    pool.close()
    return {
        "verifications": count,
        "seconds": round(seconds, 1),
        "per second": round(count / seconds),
        "child processes before, during, after": [before, during, len(children())],
        "worker RSS in MB, by tenths": memory,
    }


def children() -> set[int]:
    """Child processes of this one (Linux)."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@contextmanager
def peak_of_children() -> Iterator[list[int]]:
    """MB of the largest child, sampled every 10 ms."""
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            peak[0] = max([peak[0], *(_status(pid, "VmRSS") for pid in children())])

    for pid in children():
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        peak[0] = max([peak[0], *(_status(pid, "VmHWM") for pid in children())])
        over.set()
        thread.join()


def _status(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(x.split()[1]) // 1024 for x in lines if x.startswith(field)), 0)


def show(figures: dict[str, Any]) -> None:
    """Print them as tables."""
    console = Console(width=120)
    for title, count in (("right", "rejected"), ("wrong", "accepted")):
        rows = Table("form", count, "of", "golds", title=f"{title} answers")
        for name, split in figures.pop(title, {}).items():
            total, found = sum(map(len, split.values())), split[count]
            rows.add_row(name, str(len(found)), str(total), ", ".join(sorted({*found})[:6])[:70])
        if rows.row_count:
            console.print(rows, markup=False)
    rows = Table("response", "seconds", "status", "peak MB", title="hostile responses")
    for name, row in figures.pop("hostile", {}).items():
        rows.add_row(name, str(row["seconds"]), row["status"], str(row["peak_mb"]))
    if rows.row_count:
        console.print(rows)
    for name, value in figures.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)


def main(
    path: Annotated[Path | None, typer.Argument()] = None,
    on_pairs: Annotated[bool, typer.Option("--pairs")] = False,
    on_hostile: Annotated[bool, typer.Option("--hostile")] = False,
    alone: bool = False,
    count: Annotated[int, typer.Option("--many")] = 0,
    workers: int = 2,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    if not (path or on_pairs or on_hostile):
        raise typer.BadParameter("give the file of MATH500, --pairs or --hostile")
    golds = [json.loads(x)["answer"] for x in path.read_text().splitlines()] if path else []
    with VerifierPool(ALONE if alone else VERIFIER, workers=1 if on_hostile else workers) as pool:
        start = time.perf_counter()
        if on_hostile:
            figures = hostile(pool)
        elif on_pairs:
            figures = pairs(pool)
        else:
            figures = many(pool, golds, count) if count else table(pool, golds)
        figures["all in seconds"] = round(time.perf_counter() - start, 1)
        figures["statuses"] = dict(pool.counts)
    if as_json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

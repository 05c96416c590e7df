"""Run the incidents: what nemo_algos says of public faults, and whether it is what each row states.

    uv run --extra lab benchmarks/incidents/run.py [--only NAME] [--clean]
    uv run --extra lab benchmarks/incidents/run.py --nemo-rl FOLDER --python FILE [--write]

--nemo-rl, --python: a checkout of NeMo-RL and a Python that can import it, which is asked about the
same configs. --write: the score into README.md. Exits with 1 if a row's measured state is not its
stated one.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from incident import KINDS, read_all
from measured import Measured

from nemo_algos.terminal import echo

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- score -->", "<!-- end -->"
STATES = ("whole", "part", "missed")
OF_THIS_MACHINE = ("HF_HOME", "HF_HUB_OFFLINE", "WANDB_API_KEY", "NRL_IGNORE_TP_ACCURACY_CHECK")
Row = tuple[Any, Measured]


def measure(row: Any) -> Measured:
    """What is said of one incident."""
    if row.who in ("check", "plan"):
        from preflights import measure_check, measure_plan

        return measure_check(row) if row.who == "check" else measure_plan(row)
    if row.who == "conformance":
        from losses import measure_conformance

        return measure_conformance(row)
    if row.who == "data":
        from data_rows import measure_data

        return measure_data(row)
    if row.who == "mismatch":
        from mismatches import measure_mismatch

        return measure_mismatch(row)
    from command_lines import measure_command, measure_evals

    return measure_evals(row) if row.who == "evals" else measure_command(row)


def nemo_rl_says(rows: list[Row], checkout: Path, python: Path) -> dict[str, str]:
    """By row of `check`: NeMo-RL's first error before it makes a cluster, or "starts"."""
    from preflights import for_nemo_rl

    given = {row.folder.name: for_nemo_rl(row) for row, _ in rows if row.who == "check"}
    made = subprocess.run(
        [str(python), str(Path(__file__).parent / "theirs.py")],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": str(checkout), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return json.loads(made.stdout)


def table(rows: list[Row], says: dict[str, str]) -> str:
    """The score by part of the product, in Markdown."""
    lines = [
        "| who | incidents | whole | part | missed | not known before | of these whole "
        "| NeMo-RL refuses |",
        "|---|---|---|---|---|---|---|---|",
    ]
    refused = sum(text != "starts" for text in says.values())
    for who in (*KINDS, ""):
        some = [(row, found) for row, found in rows if who in ("", row.who)]
        if some:
            fresh = [found.state for row, found in some if not row.known]
            counts = Counter(found.state for _, found in some)
            states = " | ".join(str(counts[state]) for state in STATES)
            name = f"`{who}`" if who else "**all**"
            line = f"| {name} | {len(some)} | {states} | {len(fresh)} | {fresh.count('whole')} |"
            lines.append(f"{line} {refused if says and who == 'check' else ''} |")
    return "\n".join(lines)


def main(
    only: Annotated[str, typer.Option(help="Rows whose name begins so; several with commas.")] = "",
    clean: Annotated[
        bool, typer.Option("--clean", help="Count false alarms, too: a minute.")
    ] = False,
    nemo_rl: Annotated[Path | None, typer.Option(help="A checkout of NeMo-RL.")] = None,
    python: Annotated[Path | None, typer.Option(help="A Python that can import it.")] = None,
    write: Annotated[bool, typer.Option("--write", help="The score into README.md.")] = False,
) -> None:
    """Print what is found, the score, and the rows that are not as stated."""
    if bool(nemo_rl) != bool(python) or (write and (only or not nemo_rl)):
        raise typer.BadParameter(
            "--nemo-rl and --python belong together, and --write needs both, and all rows"
        )
    os.environ |= {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}  # before torch is loaded
    for name in OF_THIS_MACHINE:
        os.environ.pop(name, None)
    rows: list[Row] = []
    wrong = 0
    for row in read_all():
        if row.folder.name.startswith(tuple(only.split(","))):
            began = time.process_time()
            found = measure(row)
            rows.append((row, found))
            stated = found.state == row.state
            wrong += not stated
            mark = " " if stated else "*"
            spent = time.process_time() - began
            head = f"{mark} {found.state:6} {row.who:11} {row.folder.name:28} {spent:4.1f} s  "
            echo(head + found.said.replace("\n", " "))
    says = nemo_rl_says(rows, nemo_rl, python) if nemo_rl and python else {}
    for name, text in says.items():
        if text != "starts":
            echo(f"NeMo-RL refuses {name}: {text}".replace("\n", " "))
    score = table(rows, says)
    echo("\n" + score)
    misses = [(row, found) for row, found in rows if found.state != "whole"]
    echo("\nNot found whole:")
    for row, found in misses:
        echo(f"  {found.state:6} {row.report}: {row.fault} ({row.why or 'no reason is stated'})")
    if clean:
        from false_alarms import count

        lines = count()
        echo("\n" + "\n".join(lines))
        score += "\n\nFalse alarms: " + "; ".join(line for line in lines if line[0] != " ") + "."
    if write and not wrong:
        text = README.read_text()
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        README.write_text(f"{before}{BEGIN}\n{score}\n{END}{after}")
    if wrong:
        echo(f"\n{wrong} rows are not as stated (*): correct what broke, or their `state`.")
        raise typer.Exit(1)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

"""The command `nemo-algos check`."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_algos.cli.arguments import COLORS, Config, NemoRL, Overrides, load_config, show
from nemo_algos.config import select
from nemo_algos.findings import UnknownKey
from nemo_algos.preflight.check.data import environment
from nemo_algos.preflight.check.data.output_dirs import output_dirs
from nemo_algos.preflight.check.data.verdict import MARKS, Verdict
from nemo_algos.preflight.check.judge import judged
from nemo_algos.preflight.check.release import find
from nemo_algos.preflight.check.rule import Preflight
from nemo_algos.preflight.forecast import this_run
from nemo_algos.preflight.forecast.this_run import forecast_of, lines
from nemo_algos.preflight.slurm.batch import seconds
from nemo_algos.secrets import as_written
from nemo_algos.terminal import echo


def _limit(time: str) -> int | None:
    try:
        return seconds(time) if time else None
    except ValueError as error:
        raise ValueError(f"`--time` {error}") from None


def _explain(context: typer.Context, key: str) -> None:
    if key:
        from nemo_algos.cli.explain import explain_key

        echo("\n".join(explain_key(key, find(context.params["nemo_rl"]))))
        raise typer.Exit


def check(
    config: Config,
    overrides: Overrides = None,
    nemo_rl: NemoRL = "",
    time: Annotated[
        str, typer.Option(metavar="H:M:S", help="time limit of the job, as for sbatch")
    ] = "",
    data: Annotated[
        bool, typer.Option("--data", help="also try tokenizer, data and rewards of a NeMo-RL run")
    ] = False,
    rows: Annotated[
        str, typer.Option(metavar="FILE", help="JSON lines that stand in for a missing data set")
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="FOLDER", help="with config.json and tokenizer")
    ] = "",
    explain: Annotated[
        str,
        typer.Option(metavar="KEY", callback=_explain, help="explain one key, and exit"),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print findings as JSON")] = False,
) -> None:
    """Find what is wrong with a run before it starts, without a GPU; exit 1 where it would fail."""
    theirs = select(load_config(config, [], "train"), "engine") == "nemo_rl"
    theirs = theirs or any(o.startswith("engine=") for o in overrides or [])
    for option, value in {"--nemo-rl": nemo_rl, "--data": data}.items():
        if value and not theirs:
            raise ValueError(
                f"{option} is about NeMo-RL, and {config} is for the embedded engine. Remove it, "
                "or name a config with `engine: nemo_rl`."
            )
    for option, path in {"--rows": rows, "--model": model}.items():
        if path and not data:
            raise ValueError(f"{option} is for --data, which is not given. Add --data.")
        if path and not Path(path).exists():
            raise ValueError(f"{option} {path} does not exist. Name a file or folder that does.")
    release = find(nemo_rl) if theirs else None
    root = release.root if release else None
    if data and root is None:
        raise ValueError(
            "--data runs NeMo-RL's own code, and none was found here: name the checkout of "
            "NeMo-RL that will run: --nemo-rl FOLDER"
        )
    run, findings = judged(config, overrides or [], release, _limit(time))
    counts = Counter(f.severity for f in findings)
    failed = counts["error"] > 0
    if not as_json:
        if release:
            echo(f"judged by {release.name}")
        show(findings)
        echo(", ".join(f"{severity}s: {counts[severity]}" for severity in COLORS))
    forecast = None
    if run and run.algorithm and not any(isinstance(f, UnknownKey) for f in findings):
        forecast = forecast_of(run)
    if run and forecast and not as_json:
        echo()
        for line in lines(run, forecast, sys.stdout.isatty()):
            echo(line)
    tried: list[Verdict] = []
    if isinstance(run, Preflight) and root and data and not failed:
        for verdict in _tried(run, root, rows, model):
            tried.append(verdict)
            if not as_json:
                color = {"failed": "red", "warning": "yellow"}.get(verdict.outcome)
                echo(verdict.line(), color=color)
    outcomes = Counter(verdict.outcome for verdict in tried)
    if as_json:
        by = {"nemo_rl": release.name if release else None}
        whole: dict[str, Any] = {"findings": [as_written(f._asdict()) | by for f in findings]}
        if forecast:
            whole["this_run"] = this_run.as_json(forecast)
        if data:
            whole["data"] = [as_written(v._asdict()) for v in tried]
        echo(json.dumps(whole))
    elif tried:
        echo(", ".join(f"{mark}: {outcomes[name]}" for name, mark in MARKS.items()))
    elif data:
        echo("The data was not tried: correct these errors first.")
    raise typer.Exit(int(failed or outcomes["failed"] > 0))


def _tried(run: Preflight, checkout: Path, rows: str, model: str) -> Iterator[Verdict]:
    """What folders, tokenizer, data and rewards say, as it comes."""
    yield from output_dirs(run)
    if not environment.is_ready():
        where = environment.location()
        echo(f"Building an environment once ({environment.SIZE}) in {where}", err=True)
    yield from environment.check(run.plain, checkout, rows, model)

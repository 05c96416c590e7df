"""The command `nemo-algos check`."""

import json
from collections import Counter
from typing import Annotated

import typer

from nemo_algos.cli.arguments import COLORS, Config, NemoRL, Overrides, load_config, show
from nemo_algos.config import as_written
from nemo_algos.preflight.check.judge import check as checked
from nemo_algos.preflight.check.judge import versions
from nemo_algos.preflight.slurm.batch import seconds
from nemo_algos.terminal import echo


def _limit(time: str) -> int | None:
    try:
        return seconds(time) if time else None
    except ValueError as error:
        raise ValueError(f"`--time` {error}") from None


def _explain(key: str) -> None:
    if key:
        from nemo_algos.cli.explain import explain_key

        echo("\n".join(explain_key(key)))
        raise typer.Exit


def check(
    config: Config,
    overrides: Overrides = None,
    nemo_rl: NemoRL = "",
    time: Annotated[str, typer.Option(help="time limit of the job, as for sbatch")] = "",
    explain: Annotated[
        str,
        typer.Option(
            metavar="KEY", callback=_explain, is_eager=True, help="explain one key, and exit"
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print findings as JSON")] = False,
) -> None:
    """Find what is wrong with a run before it starts, without a GPU; exit 1 where it would fail."""
    theirs = load_config(config, [], "train").get("engine") == "nemo_rl"
    if nemo_rl and not theirs and not any(o.startswith("engine=") for o in overrides or []):
        what = "`--nemo-rl` names the NeMo-RL for a config with `engine: nemo_rl`"
        raise ValueError(f"{what}, and {config} is for the embedded engine. Remove the option.")
    limit = _limit(time)
    named = (nemo_rl,) if nemo_rl else versions(config)
    per_version = {v: checked(config, overrides or [], v, limit) for v in named}
    findings = {f: [v for v in named if f in per_version[v]] for v in named for f in per_version[v]}
    counts = Counter(f.severity for f in findings)
    if as_json:
        echo(json.dumps([{**as_written(f._asdict()), "nemo_rl": v} for f, v in findings.items()]))
    else:
        hints = {f: f"{f.message} (NeMo-RL {', '.join(v)})" for f, v in findings.items()}
        show(
            f if len(findings[f]) == len(named) else f._replace(message=hints[f]) for f in findings
        )
        echo(", ".join(f"{severity}s: {counts[severity]}" for severity in COLORS))
    raise typer.Exit(1 if counts["error"] else 0)

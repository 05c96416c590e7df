"""The command `nemo-algos rehearse`."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from omegaconf import DictConfig, OmegaConf

from nemo_algos.cli.arguments import Config, Overrides, load_config
from nemo_algos.config import ConfigError, as_written
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.snapshot import load
from nemo_algos.preflight.rehearsal import machine, run
from nemo_algos.preflight.rehearsal.places import places
from nemo_algos.preflight.rehearsal.report import line, summary
from nemo_algos.preflight.rehearsal.request import STAGES, Request
from nemo_algos.preflight.rehearsal.verdict import Verdict, add
from nemo_algos.terminal import echo


def _only(words: str) -> tuple[str, ...]:
    asked = tuple(words.split(",")) if words else ()
    for word in asked:
        if word not in STAGES:
            raise ValueError(
                f"--only has an unknown stage: {word}. Choose from {', '.join(STAGES)}."
            )
    return asked


def _build() -> None:
    """The environment, where it is not there yet."""
    if not machine.is_built():
        size = f"{machine.SIZE}, about {machine.MINUTES} minutes, in {machine.location()}"
        echo(f"Building the rehearsal's environment (only once): {size}", err=True)
        machine.build()


def rehearse(
    config: Config,
    overrides: Overrides = None,
    nemo_rl: Annotated[str, typer.Option(help="NeMo-RL checkout; found by default")] = "",
    steps: Annotated[int, typer.Option(min=2, help="training steps before the kill")] = 2,
    ranks: Annotated[int, typer.Option(min=1, help="most training ranks")] = 4,
    model: Annotated[str, typer.Option(help="folder with config.json and tokenizer")] = "",
    rows: Annotated[str, typer.Option(help="JSON lines that stand in for a missing data set")] = "",
    only: Annotated[str, typer.Option(help="run only these stages, such as data,rewards")] = "",
    html: Annotated[Path | None, typer.Option(help="write the report as a page")] = None,
    setup: Annotated[bool, typer.Option("--setup", help="only build the environment")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="verdicts for scripts")] = False,
) -> None:
    """Run a small copy of a NeMo-RL run on this machine, without GPUs; exit 1 if it would fail."""
    given, asked = load_config(config, overrides, "train"), _only(only)
    if OmegaConf.select(given, "engine") != "nemo_rl":
        raise ValueError(f"{config} has no `engine: nemo_rl`. Only NeMo-RL runs can be rehearsed.")
    if html and not html.parent.is_dir():
        raise ValueError(f"--html {html}: the folder {html.parent} does not exist. Create it.")
    if setup:
        _build()
        echo(machine.location())
        return
    root, place = run.checkout(nemo_rl), run.folder()
    request = Request(OmegaConf.to_yaml(given), run.version(root), ranks, steps, model, rows, asked)
    found: list[Verdict] = []

    def say(verdict: Verdict) -> None:
        found.append(verdict)
        if not as_json:
            echo(line(verdict), color={"failed": "red", "warning": "yellow"}.get(verdict.outcome))

    for verdict in judge_config(request, given):
        say(add(place, verdict))
    inside = request.wants("tokenizer", "data", "rewards", "stack")
    if inside and not any(v.stage == "judge" and v.outcome == "failed" for v in found):
        _build()
        for verdict in run.rehearse(request, root, place):
            if verdict.stage not in ("judge", "places"):
                say(verdict)
    if as_json:
        echo(json.dumps([as_written(v._asdict()) for v in found]))
    else:
        echo(summary(found, place))
    if html:
        from nemo_algos.preflight.rehearsal.page import write

        write(html, config, found, place)
        echo(f"page: {html}", err=True)
    raise typer.Exit(1 if any(v.outcome == "failed" for v in found) else 0)


def judge_config(request: Request, given: DictConfig) -> Iterator[Verdict]:
    """What `check` finds, and what the folders and trackers of the config say."""
    begun = time.monotonic()
    try:
        preflight, findings = judge(given, load(request.version))
    except ConfigError as error:
        findings = error.findings
        preflight = None
    wrong = [f for f in findings if f.severity == "error"]
    for finding in wrong:
        yield Verdict("judge", "failed", str(finding), finding.path, time.monotonic() - begun)
    warned = [f for f in findings if f.severity == "warning"]
    for finding in warned:
        yield Verdict("judge", "warning", str(finding), finding.path, time.monotonic() - begun)
    if not wrong:
        message = f"`nemo-algos check` finds no error; warnings: {len(warned)}."
        yield Verdict("judge", "passed", message, "", time.monotonic() - begun)
    if preflight and request.wants("places"):
        yield from places(preflight)

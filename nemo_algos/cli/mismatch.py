"""The command `nemo-algos mismatch`."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from nemo_algos.extras import require
from nemo_algos.terminal import Console, echo

# characters of a bucket's values; worst tokens on the terminal
SHORT = 60
LINES = 5

if TYPE_CHECKING:
    from nemo_algos.lab.mismatch.live import Seen
    from nemo_algos.lab.mismatch.verdict import Diagnosis


def mismatch(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help=".npz, .jsonl or .pt; NeMo-RL's train_data_step*.jsonl"
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="the trainer's weights: try each cause on them"),
    ] = None,
    previous: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="an earlier checkpoint; may be repeated"),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the LoRA adapter (PEFT)")
    ] = None,
    sampler: Annotated[
        str, typer.Option(metavar="URL", help="probe this OpenAI-compatible server (with /v1)")
    ] = "",
    responses: Annotated[
        int, typer.Option(metavar="N", min=8, help="responses to recompute with --model")
    ] = 64,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a page with the pictures")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="numbers for scripts")] = False,
) -> None:
    """Find out why sampler and trainer give the same tokens different log-probs.

    Exits with 1 where a probe of --sampler finds a fault.
    """
    require("lab")
    if (previous or adapter) and not model:
        raise ValueError(
            "--previous and --adapter need --model. Name the folder of the trainer's weights."
        )
    for folder in (model, *(previous or []), adapter):
        if folder and not folder.is_dir():
            raise ValueError(
                f"{folder} is not a folder. Name one with config.json (an adapter: "
                "adapter_config.json) and safetensors."
            )
    verdict = _verdict(files, model, previous or [], adapter, responses, quiet=as_json)
    if html:
        from nemo_algos.lab.mismatch.page import write

        write(html, verdict, [path.name for path in files])
    seen = _probed(files, sampler) if sampler else []
    if as_json:
        probes = {"probes": [probe._asdict() for probe in seen]} if sampler else {}
        echo(json.dumps(verdict.numbers() | probes, indent=2))
    else:
        _show(verdict)
        for probe in seen:
            mark = "[bold]fault[/bold]" if probe.fault else "as expected"
            Console(highlight=False).print(
                f"{probe.probe}, {mark}: {escape(probe.text)}", soft_wrap=True
            )
    if any(probe.fault for probe in seen):
        raise typer.Exit(1)


def _verdict(
    files: list[Path],
    model: Path | None,
    previous: list[Path],
    adapter: Path | None,
    responses: int,
    quiet: bool,
) -> Diagnosis:
    from nemo_algos.engines.dumps.dump import read  # scipy
    from nemo_algos.lab.mismatch.verdict import diagnose, with_model

    dumps = [read(path) for path in files]
    without = diagnose(dumps)
    if model is None or without.verdict == "few":
        return without
    require("engine")
    from nemo_algos.lab.mismatch.examination import examine  # torch, transformers

    console = Console(stderr=True, highlight=False)
    with console.status("loading the model", spinner="line") as status:
        told = (lambda text: None) if quiet else (lambda text: status.update(escape(text)))
        return with_model(dumps, examine(dumps, model, previous, adapter, responses, told))


def _probed(files: list[Path], url: str) -> list[Seen]:
    from nemo_algos.engines.dumps.dump import read
    from nemo_algos.lab.mismatch.live import ROWS, Server, probed
    from nemo_algos.lab.mismatch.responses import gather

    some = gather([read(path) for path in files], ROWS)
    return probed(Server(url), some)


def _show(verdict: Diagnosis) -> None:
    console = Console(highlight=False)
    numbers = verdict.numbers()
    counted = f"{numbers['tokens']:,} tokens of {numbers['responses']:,} responses"
    if numbers["not_finite"]:
        counted += f" ({numbers['not_finite']:,} more are not finite)"
    console.print(f"[bold]{verdict.title}[/bold]: {escape(verdict.found)}", soft_wrap=True)
    console.print(f"{counted}, mean |d| {numbers['mean']:.2g}, largest {numbers['max']:.2g} nats")
    _show_where(console, verdict)
    for cause in verdict.causes:
        values = ", ".join(f"{k} {_text(v)}" for k, v in cause.parameter.items())
        alone = sum(other.side == cause.side for other in verdict.causes) == 1
        they = "it explains" if alone else "together they explain"
        named = f"{cause.name} ({values})" if values else cause.name
        console.print(
            escape(f"- {named}: {they} {cause.explains:.0%} of the {cause.side}'s difference"),
            soft_wrap=True,
        )
    if verdict.candidates:
        console.print(f"it may be: {', '.join(verdict.candidates)}", soft_wrap=True)
    if verdict.next_step:
        console.print(f"next: {escape(verdict.next_step)}", soft_wrap=True)


def _show_where(console: Console, verdict: Diagnosis) -> None:
    for bucket in verdict.where:
        text = (
            f"where: {bucket.by} {shorten(bucket.values, SHORT, placeholder=' ...')}: mean |d| "
            f"{bucket.mean:.2g}, elsewhere {bucket.elsewhere:.2g} nats ({bucket.tokens:,} "
            f"tokens, {bucket.share:.0%} of the difference)"
        )
        console.print(escape(text), soft_wrap=True)
    for one in verdict.worst[:LINES]:
        text = f"worst: response {one['response']}, place {one['place']}, token {one['token']}"
        text += f" {one['text']!r}" if "text" in one else ""
        text += f": sampler {one['sampler']:.4g}, trainer {one['trainer']:.4g}"
        console.print(escape(text), soft_wrap=True)
    if len(verdict.worst) > LINES:
        console.print(f"(--json and --html have {len(verdict.worst)} such tokens)")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)

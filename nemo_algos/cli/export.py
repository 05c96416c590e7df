"""The command `nemo-algos export`: a run's start; a benchmark's rows; a model card."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from nemo_algos import config as configs
from nemo_algos.cli import Plain
from nemo_algos.cli.arguments import Config, Overrides, Words, load_config
from nemo_algos.engines.data.puzzles import Made
from nemo_algos.engines.data.tasks import Puzzles
from nemo_algos.engines.local.schema import SHAPES
from nemo_algos.extras import require
from nemo_algos.findings import refuse_first
from nemo_algos.jsonl import replace
from nemo_algos.preflight.check.local.judge import parse
from nemo_algos.terminal import Console, echo


class Export(Words):
    """A run's start is the default."""

    default = "start"


export = typer.Typer(
    cls=Export, add_completion=False, help="Write what another engine, or a run, can train on."
)


@export.command(
    cls=Plain,
    epilog="A benchmark's problems as training rows: nemo-algos export problems -h. "
    "A run's model card: nemo-algos export card -h",
)
def start(
    config: Config,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="output folder for model/ and the .jsonl files")
    ],
    overrides: Overrides = None,
) -> None:
    """Write a countdown model and the problems that a run starts from, for another engine.

    train.jsonl has the problems of all its steps in their order, validation.jsonl those held out.
    """
    require("engine")
    checked, _ = parse(configs.resolve(load_config(config, overrides, "train")))
    name = checked.policy.model_name
    grpo = checked.grpo
    refuse_first(
        (
            name not in SHAPES,  # the models that we build: all others are files
            f"{config}: {name} and its data are already files that any engine can read. Export is "
            "only for the built-in models.",
        ),
        (
            checked.data.task != "countdown",
            f"{config}: other engines have no verifier for `data.task={checked.data.task}`. "
            "Export is only for countdown.",
        ),
    )
    import torch  # after the config is judged

    from nemo_algos.engines.local.build import policy_of

    torch.set_num_threads(1)  # as a run of such a model (`hardware.threads_of`)
    # saving makes the folder, too
    policy_of(checked.policy, checked.data.rules, Console()).save(str(folder / "model"))
    task = Puzzles(checked.data, grpo.seed)
    number = grpo.num_prompts_per_step
    steps = (task.examples(step, number) for step in range(grpo.max_num_steps))
    _write(folder / "train.jsonl", task, (puzzle for step in steps for puzzle in step))
    _write(folder / "validation.jsonl", task, task.held_out(grpo.max_val_samples))


def _write(path: Path, task: Puzzles, puzzles: Iterable[Made]) -> None:
    rows = ({"problem": task.prompt(p), "answer": str(p)} for p in puzzles)
    replace(path, "".join(json.dumps(row) + "\n" for row in rows))
    echo(path)


@export.command(
    cls=Plain, epilog="Example: nemo-algos export problems humaneval hub data/humaneval.jsonl"
)
def problems(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="name of the benchmark, such as apps")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="its file or folder, or `hub` to download")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="output file, .jsonl")],
    databases: Annotated[str, typer.Option(metavar="FOLDER", help="of the SQLite databases")] = "",
) -> None:
    """Write a benchmark's problems as rows to train on, in either engine.

    Of each its prompt under `problem`, and under `answer` what its verifier is given.
    """
    from nemo_algos.lab.evals.benchmarks import load  # other commands' help needs none of it

    loaded = load(name, data, databases=databases)
    if any(p.images for p in loaded.problems):
        raise ValueError(
            f"{name} has images, which training rows cannot contain. Train on the benchmark's "
            "file directly."
        )
    rows = (
        {"id": p.id, **p.info, "problem": p.prompt, "answer": p.answer} for p in loaded.problems
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, "".join(json.dumps(row) + "\n" for row in rows))
    echo(f"{file}: {len(loaded.problems)} problems from {loaded.source}")
    for what, number in sorted(loaded.counts.items()):
        echo(f"{number} {what}")
    asked = loaded.benchmark
    echo(f"verifier {asked.verifier}, deadline {asked.deadline:g}")


@export.command(cls=Plain, epilog="Example: nemo-algos export card runs/etr/exp_001")
def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a training run")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="default: README.md beside the model")
    ] = None,
) -> None:
    """Write a model card: method, held-out results, evaluations, and the config that repeats it.

    Paths of this machine are cut to their last name, and what names trackers is left out.
    """
    from nemo_algos.lab.card import card as written
    from nemo_algos.lab.report.runs import read_runs

    text = written(read_runs([run])[0])
    folder = run / "model" if (run / "model").is_dir() else run
    path = file or folder / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, text)
    echo(path)

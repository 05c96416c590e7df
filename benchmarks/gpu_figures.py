"""Pieces of benchmarks/gpu_half_hour.sh that need more than a command, and the table of all."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import timing
import typer

app = typer.Typer(help=__doc__)
STUDY = Path(__file__).parent / "study"
SHOWN = {  # of NeMo-RL's metrics, over the steps
    "timing/train/total_step_time": "a step, s",
    "timing/train/policy_training": "updates, s",
    "timing/train/generation": "sampling, s",
    "train/reward": "mean reward",
    "train/mismatch/mean": "mismatch/mean, nats",
    "train/mismatch/max": "mismatch/max, nats",
}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The metrics that a run logged, each by step, of its one file of TensorBoard events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.glob("logs/**/tensorboard/**/events.*")
    events = EventAccumulator(str(file)).Reload()
    names = events.Tags()["scalars"]
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in names}


@app.command()
def run(recipe: str, file: Path) -> None:
    """Eight steps of NeMo-RL on the countdown model: medians over the steps after the second."""
    folder = file.with_suffix("")
    if not (folder / "start").is_dir():
        folder.mkdir(exist_ok=True)
        export = ["nemo_algos", "export", "recipes/cpu/countdown.yaml", "start"]
        subprocess.run([sys.executable, "-m", *export], cwd=folder, check=True)
    root = Path(__file__).parents[1]
    words = [str(root / "examples/run_grpo_math.py"), "--config", f"recipes/cpu/{recipe}.yaml"]
    words += ["grpo.max_num_steps=8", "logger.tensorboard_enabled=true", "logger.log_dir=logs"]
    subprocess.run([sys.executable, *words], cwd=folder, check=True)
    figures = {
        SHOWN[name]: median(value for step, value in curve.items() if step > 2)
        for name, curve in scalars(folder).items()
        if name in SHOWN
    }
    timing.save(file, figures)


@app.command()
def study(file: Path, settings: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """The study of 51 million parameters; goes on where it ended."""
    folder = file.with_suffix("")
    words = [STUDY / "run.py", STUDY / "configs" / "gpu.yaml", f"out={folder}"]
    words += [f"settings.{word}" for word in settings or []]
    subprocess.run([sys.executable, *words], check=True)
    (results,) = folder.rglob("results.csv")
    with results.open(newline="") as rows:
        done = [row for row in csv.DictReader(rows) if not row["failed"]]
    names = dict.fromkeys(row["method"] for row in done)
    timing.save(
        file,
        {
            f"{name}, {metric}": fmean(float(row[metric]) for row in done if row["method"] == name)
            for metric in ("pass@1", "pass@16", "entropy/exact")
            for name in names
        },
    )


@app.command()
def table(folder: Path) -> None:
    """Prints a row per figure."""
    print("| piece | device | figure | value |\n|---|---|---|---|")
    for file in sorted(folder.glob("*.json")):
        piece = json.loads(file.read_text())
        for name, value in piece["figures"].items():
            print(f"| {file.stem} | {piece['device']} | {name} | {value:.3g} |")


if __name__ == "__main__":
    app()

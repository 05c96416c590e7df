"""A run's model card: what a model was trained with, and what came of it, as the hub shows it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nemo_algos.algorithms.build import build
from nemo_algos.lab.report.numbers import format_number
from nemo_algos.lab.report.runs import LoadedRun

TRACKERS = re.compile("wandb|mlflow|trackio|swanlab|tracking")  # whom a run told


def card(run: LoadedRun) -> str:
    """Markdown with the hub's header. Raises ValueError without a record of the whole config."""
    config = run.config
    if not {"method", "policy", "grpo"} <= config.keys():  # TRL's record has no model
        raise ValueError(
            f"{run.folder} has no record of its whole config, so nobody can say what its model "
            "was trained with. Name a run of `nemo-algos train`."
        )
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["nemo-algos", "reinforcement-learning", _name(config["method"])],
    }
    base = str(config["policy"]["model_name"])
    if base.count("/") == 1 and not Path(base).exists():  # of the hub
        header["base_model"] = base
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {run.label or run.folder.name}",
        *_sections(run, Path(base).name),
    ]
    return "\n\n".join(parts) + "\n"


def _sections(run: LoadedRun, base: str) -> Iterator[str]:
    config = run.config
    grpo = config["grpo"]
    responses = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    steps = _steps(run)
    yield (
        f"`{base}` after {format_number(steps)} steps of {responses} responses with "
        f"{_method(config['method'])}, by nemo_algos."
    )
    results = [*_results(run)]
    if results:
        rows = ["| held out | before | after |", "|---|---|---|", *results]
        seed = format_number(grpo.get("seed"))
        yield "## Results\n\n" + "\n".join(rows)
        yield f"One run, seed {seed}: another seed gives other numbers."
    evaluated = []
    for name, found in run.evals.items():
        mean = found["scalars"]["mean"]
        numbers = [format_number(mean[part]) for part in ("value", "low", "high")]
        evaluated.append(f"| {name} | {found['samples']} | {' | '.join(numbers)} |")
    if evaluated:
        head = ["| benchmark | samples of each problem | mean score | 95 % from | to |"]
        head.append("|---|---|---|---|---|")
        yield "## Evaluations\n\n" + "\n".join([*head, *evaluated])
    logger = {}
    for key, value in config.get("logger", {}).items():
        if not TRACKERS.search(key):
            logger[key] = value
    shared = {**config, "logger": logger}
    written = yaml.safe_dump(_without_folders(shared), sort_keys=False)
    versions = {"git": run.manifest.get("git"), **run.manifest.get("versions", {})}
    known = [f"{name} {value}" for name, value in versions.items() if value]
    yield (
        "## Train it again\n\nSave this as `config.yaml`, and run `nemo-algos train config.yaml`"
        + (f" ({', '.join(known)})." if known else ".")
    )
    yield f"```yaml\n{written}```"


def _name(method: Mapping[str, Any]) -> str:
    return str(method.get("name") or "+".join(map(str, method.values())))


def _method(block: Mapping[str, Any]) -> str:
    """The method and where it is published, as far as this package knows it."""
    name = _name(block)
    try:
        paper = build(dict(block)).base.method.paper
    except (ValueError, ImportError):  # somebody's own, which is not here
        return f"`{name}`"
    return f"`{name}` ({paper})"


def _steps(run: LoadedRun) -> float | None:
    """As many as are recorded."""
    last = [steps[-1] for steps, _ in run.metrics.values() if len(steps)]
    return run.summary.get("steps") or max(last, default=None)


def _results(run: LoadedRun) -> Iterator[str]:
    """Rows of held-out metrics: the embedded engine's summary, else NeMo-RL's validations."""
    before = run.summary.get("before", {})
    for name, value in run.summary.get("after", {}).items():
        yield f"| {name} | {format_number(before.get(name))} | {format_number(value)} |"
    if not run.summary and "validation/accuracy" in run.metrics:
        _, values = run.metrics["validation/accuracy"]
        yield f"| accuracy | {format_number(values[0])} | {format_number(values[-1])} |"


def _without_folders(value: Any) -> Any:
    """The same with paths of this machine cut to their last name."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        return Path(value).name
    return value

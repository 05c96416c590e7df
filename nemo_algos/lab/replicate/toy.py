"""A manifest at countdown's scale: the same items and methods, a tiny model on this machine.

Runs that differ only in their model or data become one, whatever their item and paper.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from pathlib import Path

from nemo_algos.config import (
    ConfigError,
    apply_overrides,
    at,
    find,
    load,
    read,
    resolve,
    validate,
)
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.lab.evals.run import evaluate
from nemo_algos.lab.evals.schema import parse_config
from nemo_algos.lab.replicate.manifest import (
    TRAINING,
    Block,
    Item,
    Paper,
    PaperEvaluation,
    PaperMethod,
    PaperModel,
    PaperRow,
)
from nemo_algos.preflight.check.local.judge import judge
from nemo_algos.processes import fresh
from nemo_algos.terminal import Console

PAPER = "toy"  # in place of the paper's name in the runs' folders: papers share runs
CONFIG, BENCHMARK, SAMPLES = "local.yaml", "countdown", 32
LACKING = {"boxed"}  # metrics of mathematics alone
STEPS = "grpo.max_num_steps=24"
SMALL = [
    STEPS,
    "grpo.num_prompts_per_step=16",
    "grpo.num_generations_per_prompt=8",
    "grpo.val_period=6",
    "grpo.val_samples_per_prompt=8",
    "grpo.max_val_samples=32",
    "policy.train_global_batch_size=32",
    "policy.train_micro_batch_size=32",
    "policy.threads=1",
    "logger.tensorboard_enabled=false",
    "logger.trace_period=8",
    "checkpointing.save_period=8",
    "checkpointing.keep_top_k=3",
]
EVALUATION = [f"benchmarks.{BENCHMARK}.problems=32", f"sampling.samples={SAMPLES}"]


def toy(manifest: Paper, steps: int | None = None) -> Paper:
    """The manifest's toy form; items without one are left out."""
    names = {
        f"{m}/{how}": f"{_model(model)}/{_method(method)}"
        for m, model in manifest.models.items()
        for how, method in manifest.methods.items()
        if isinstance(model.toy, list) and not method.program
    }
    small = [*SMALL, *([f"grpo.max_num_steps={steps}"] if steps else [])]
    models = {
        _model(model): PaperModel(
            base="countdown-tiny", recipe=CONFIG, overrides=[*small, *model.toy]
        )
        for model in manifest.models.values()
        if isinstance(model.toy, list)
    }
    methods = {
        _method(m): PaperMethod(method=m.method, overrides=_supported_keys(m))
        for m in manifest.methods.values()
    }
    items = {name: _item(manifest, item, names) for name, item in manifest.items.items()}
    changed = {
        "label": "TOY: ",
        "unit": "fraction",
        "seeds": 1,
        "models": models,
        "methods": methods,
        "evaluations": {name: _evaluation(e) for name, e in manifest.evaluations.items()},
        "misprints": [],
        "items": {name: item for name, item in items.items() if item},
    }
    return manifest.model_copy(update=changed)


def _model(model: PaperModel) -> str:
    return "-".join([BENCHMARK, *(_slug(*o.split("=")) for o in model.toy)])


def _method(method: PaperMethod) -> str:
    name = method.method.get("name", "base")
    keys = [(k, v) for k, v in method.method.items() if k != "name"]
    keys += [(key, value) for key, _, value in (o.partition("=") for o in _supported_keys(method))]
    return "-".join([name, *(_slug(*key) for key in keys)])


def _supported_keys(method: PaperMethod) -> list[str]:
    """Its keys beside `method:` that the embedded engine has."""
    return [override for override in method.overrides if _has(override)]


@functools.cache
def _has(override: str) -> bool:
    try:
        validate(LocalConfig, load(find(CONFIG), ["method.name=grpo", override]))
    except ConfigError:
        return False
    return True


def _notes(manifest: Paper, item: Item, names: dict[str, str]) -> list[str]:
    """What of its runs has no toy form, and what of a method is left out, with the runs' names."""
    said: dict[tuple[str, str], list[str]] = {}
    for run in item.needed_runs():
        model, method = manifest.of(run)
        left_out = [o for o in method.overrides if o not in _supported_keys(method)]
        if run not in names:
            own = "NeMo-RL's own program trains it"
            about = "No toy form of", model.toy if isinstance(model.toy, str) else own
        elif left_out:
            about = f"No {', '.join(left_out)} in", "the embedded engine has no such key"
        else:
            continue
        said.setdefault(about, []).append(run)
    return [f"{what} {', '.join(runs)}: {why}" for (what, why), runs in said.items()]


def _slug(key: str, value: object) -> str:
    return re.sub(r"[^\w.-]", "", f"{key.rpartition('.')[2]}{value}")


def _evaluation(evaluation: PaperEvaluation) -> PaperEvaluation:
    """On countdown, at the same temperature or with the same tokens perturbed."""
    hot = [o for o in evaluation.overrides if o.startswith("sampling.temperature")]
    asked = at(load(find(evaluation.config), evaluation.overrides), "sampling.perturbation")
    kept = [*hot, *(f"sampling.perturbation.{key}={x}" for key, x in (asked or {}).items())]
    config = "eval/countdown.yaml"
    changed = {"config": config, "overrides": [*EVALUATION, *kept]}
    return evaluation.model_copy(update=changed)


def _item(manifest: Paper, item: Item, names: dict[str, str]) -> Item | None:
    """None where nothing is left."""
    blocks = list(
        dict.fromkeys(b.model_dump_json() for x in item.blocks if (b := _block(x, names)))
    )
    changed = {
        "blocks": [Block.model_validate_json(block) for block in blocks],
        "runs": list(dict.fromkeys(names[run] for run in item.runs if run in names)),
        "metrics": list(dict.fromkeys(_metric(metric, names) for metric in item.metrics)),
        "benchmarks": [BENCHMARK] if item.benchmarks else [],
        "said": [],
        "note": ". ".join(_notes(manifest, item, names)),
    }
    there = item.kind != "text" and item.toy and (changed["blocks"] or changed["runs"])
    return item.model_copy(update=changed) if there else None


def _block(block: Block, names: dict[str, str]) -> Block | None:
    """Its numbers on countdown, k up to the samples, once each; without titles and printed ones."""
    by_run = bool(block.rows[0].run)
    kept = [column for column in block.columns if column.split()[1] not in LACKING]
    columns = list(dict.fromkeys(_column(c, by_run, names) for c in kept))
    rows = {_row(row, names): None for row in block.rows if not by_run or row.run in names}
    if not rows:
        return None
    made = [PaperRow(label=a, run=b, benchmark=c, evaluation=d) for a, b, c, d in rows]
    return Block(columns=columns, rows=made)


def _metric(metric: str, names: dict[str, str]) -> str:
    return _column(metric, True, names) if " " in metric else metric


def _column(column: str, by_run: bool, names: dict[str, str]) -> str:
    first, metric = column.split()
    if k := re.search(r"@(\d+)$", metric):
        metric = f"{metric[: k.start()]}@{min(int(k[1]), SAMPLES)}"
    return f"{_benchmark(first) if by_run else names[first]} {metric}"


def _row(row: PaperRow, names: dict[str, str]) -> tuple[str, str, str, str]:
    if not row.run:
        where = _benchmark(row.benchmark)
        return where, "", where, row.evaluation
    run = names[row.run]
    label = ", ".join(part for part in (run.partition("/")[2], row.evaluation) if part)
    return label, run, "", row.evaluation


def _benchmark(name: str) -> str:
    return name if name == TRAINING else BENCHMARK


def make(manifest: Paper, items: Iterable[Item], out: Path, workers: int) -> Iterator[str]:
    """Train and evaluate what the items need and what is not there yet; a line after each run.

    Raises ValueError where a folder holds another run.
    """
    wanted: dict[str, set[str]] = {}
    every = {name for name, known in manifest.evaluations.items() if known.every_checkpoint}
    for item in items:
        for run in item.needed_runs():
            wanted.setdefault(run, set()).update(every & {*item.evaluations})
        for cell in item.cells():
            if cell.benchmarks != (TRAINING,):
                of = [
                    cell.run,
                    *([f"{cell.run.split('/')[0]}/base"] if "flip/" in cell.metric else []),
                ]
                for run in of:
                    wanted[run].add(cell.evaluation or item.evaluations[0])
    with fresh(workers) as processes:
        waiting = {
            processes.submit(run_of, manifest, run, sorted(evaluations), out): run
            for run, evaluations in wanted.items()
        }
        try:
            for i, future in enumerate(as_completed(waiting), 1):
                future.result()
                yield f"{i} of {len(waiting)}: {waiting[future]}"
        finally:
            processes.shutdown(cancel_futures=True)


def run_of(manifest: Paper, run: str, evaluations: list[str], out: Path) -> None:
    """One run, trained and evaluated in its folder, from where it stands."""
    from nemo_algos.engines.local.run import run as train  # torch

    folder, console = out / PAPER / run, Console(quiet=True)
    model = manifest.of(run)[0]
    if manifest.trains(run):
        written = apply_overrides(read(find(model.recipe)), manifest.overrides(run))
        config, algorithm, _ = judge(resolve(written), folder if folder.exists() else None)
        train(config, algorithm, folder, console)
    start = {"policy": at(load(find(model.recipe), model.overrides), "policy")}
    source = {"run": str(folder)} if manifest.trains(run) else start
    for evaluation in (manifest.evaluations[name] for name in dict.fromkeys(evaluations)):
        plain = load(find(evaluation.config), evaluation.overrides)
        for at_step, end in _checkpoints(folder) if evaluation.every_checkpoint else [({}, "")]:
            section = {"engine": "local", **source, **at_step}
            asked = {"model": section, "out": f"{folder / evaluation.folder}{end}"}
            evaluate(parse_config({**plain, **asked}), console)


def _checkpoints(folder: Path) -> list[tuple[dict[str, int], str]]:
    """The key of the model, and the end of the evaluation's folder, of each checkpoint."""
    from nemo_algos.engines.local.checkpoint import steps  # torch

    return [({"step": step}, f"-{step}") for step in sorted(steps(folder / "checkpoints"))]

"""What an item needs: its runs with GPUs, hours and price, its evaluations, its commands."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nemo_algos.config import apply_overrides, at, find, load, read
from nemo_algos.lab.replicate.manifest import Item, Paper, PaperEvaluation
from nemo_algos.preflight.check.judge import judge, refuse, versions
from nemo_algos.preflight.check.snapshot import load as release
from nemo_algos.preflight.plan import report
from nemo_algos.preflight.plan.gpus import GPUS
from nemo_algos.preflight.plan.layouts import plan

ASSUMED = 100  # steps, where the paper says no length


class Cost(NamedTuple):
    """Of one seed of a run. stated: whether its length is; fits: whether the GPUs hold it."""

    gpus: int
    steps: int
    stated: bool
    hours: float
    gpu_hours: float
    price: float | None
    fits: bool


class Costs:
    """Of runs, by recipe and keys: methods cost the same."""

    def __init__(self, manifest: Paper, price: float | None) -> None:
        self.manifest, self.price = manifest, price
        self.known: dict[str, Cost] = {}

    def same(self, run: str) -> str:
        """The recipe, and what the run changes in it but for the method's keys."""
        model, method = self.manifest.of(run)
        return " ".join([Path(model.recipe).stem, *model.overrides, *method.overrides])

    def of(self, run: str) -> Cost:
        """As `nemo-algos plan` has it. Raises ConfigError where the run is wrong."""
        if (same := self.same(run)) not in self.known:
            self.known[same] = self._of(run)
        return self.known[same]

    def _of(self, run: str) -> Cost:
        model = self.manifest.of(run)[0]
        recipe, trained = model.recipe, model.data[0]
        written = apply_overrides(read(find(recipe)), self.manifest.overrides(run))
        judged, findings = judge(written, release(versions(recipe)[0]))
        refuse(findings)
        assert judged.model
        p = plan(judged.plain, judged.model, GPUS[self.manifest.gpu])
        rows = self.manifest.data[trained].rows or 0
        epochs = at(judged.plain, "grpo.max_num_epochs") or 1
        prompts = int(p.run["grpo.num_prompts_per_step"] * p.run.oversampling)
        stated = min(p.steps, epochs * rows // prompts)
        sums = report.totals(p, stated or ASSUMED, self.price)
        spent = sums["seconds"] / 3600, sums["gpu_hours"], sums.get("price")
        fits = p.trains and p.generates
        return Cost(p.run.layout.gpus, stated or ASSUMED, bool(stated), *spent, fits)


def trained_runs(manifest: Paper, item: Item) -> list[str]:
    """The runs of the item that a recipe trains, and can."""
    return [r for r in item.needed_runs() if manifest.by_recipe(r) and not manifest.lacks(r)]


def seeds(manifest: Paper, run: str) -> list[int]:
    """Of a run; a model as it is has one."""
    return list(range(1, manifest.seeds + 1 if manifest.trains(run) else 2))


def place(manifest: Paper, paper: str, run: str, seed: int) -> Path:
    """A run's folder below the common one."""
    return Path(paper) / (f"{run}-seed{seed}" if len(seeds(manifest, run)) > 1 else run)


def seeded_overrides(manifest: Paper, run: str, seed: int) -> list[str]:
    """The run's overrides; with its seed where the paper has several."""
    return [
        *manifest.overrides(run),
        *([f"grpo.seed={seed}"] if len(seeds(manifest, run)) > 1 else []),
    ]


def evaluations(manifest: Paper, item: Item) -> dict[str, list[str]]:
    """By evaluation, the runs of which the item takes numbers from it."""
    found: dict[str, dict[str, None]] = {name: {} for name in item.evaluations}
    chosen = {name: _benchmarks(manifest, name) for name in item.evaluations}
    for cell in item.cells():
        for name in [cell.evaluation] if cell.evaluation else item.evaluations:
            if chosen[name] & {*cell.benchmarks} and not manifest.lacks(cell.run):
                found[name][cell.run] = None
    for name in item.evaluations:
        if manifest.evaluations[name].every_checkpoint:
            found[name] |= {run: None for run in item.runs if not manifest.lacks(run)}
    return {name: list(runs) for name, runs in found.items() if runs}


def _benchmarks(manifest: Paper, name: str) -> set[str]:
    known = manifest.evaluations[name]
    written = load(find(known.config), known.overrides)["benchmarks"]
    return {benchmark for benchmark, section in written.items() if section is not None}


def evaluation(
    manifest: Paper, name: str, run: str, served: str, weights: str, folder: str
) -> list[str]:
    """The words of `nemo-algos eval` for a run: asks what is served, or loads the weights.

    {step} in a word stands for the number of each checkpoint.
    """
    known, model = manifest.evaluations[name], manifest.of(run)[0]
    keys = [*known.overrides, *model.sampling]
    asked = f"model.name={served}" if serves(known) else f"model.policy.model_name={weights}"
    out = f"out={folder}/{known.folder}{'-{step}' if known.every_checkpoint else ''}"
    return ["nemo-algos", "eval", known.config, *keys, asked, out]


def serves(evaluation: PaperEvaluation) -> bool:
    """Whether it asks a server; else the embedded engine samples."""
    return at(load(find(evaluation.config)), "model.engine") == "endpoint"


def commands(manifest: Paper, paper: str, item: Item, out: Path) -> Iterator[str]:
    """By hand, in NeMo-RL's root: training, its checkpoint for vLLM, a server, the evaluations."""
    asked = evaluations(manifest, item)
    for run in (run for run in item.needed_runs() if not manifest.lacks(run)):
        names = [name for name, runs in asked.items() if run in runs]
        for seed in seeds(manifest, run):
            folder = (out.resolve() / place(manifest, paper, run, seed)).as_posix()
            yield from _commands(
                manifest, run, names, folder, seeded_overrides(manifest, run, seed)
            )


def _commands(
    manifest: Paper, run: str, names: list[str], folder: str, keys: list[str]
) -> Iterator[str]:
    model = manifest.of(run)[0]
    if manifest.trains(run):
        kept = [
            f"checkpointing.checkpoint_dir={folder}/checkpoints",
            f"logger.log_dir={folder}/logs",
        ]
        recipe = ["nemo-algos", "train", model.recipe, *keys]
        yield shlex.join([*(manifest.program(run) or recipe), *kept])
    if not names:
        return
    if manifest.trains(run):
        step, served = f"{folder}/checkpoints/step_N", f"{folder}/hf"
        paths = f"--dcp-ckpt-path {step}/policy/weights --hf-ckpt-path {served}"
        yield f"python examples/converters/convert_dcp_to_hf.py --config {step}/config.yaml {paths}"
    else:
        served = model.base
    if any(serves(manifest.evaluations[name]) for name in names):
        parallel = model.serve.tensor_parallel * model.serve.nodes
        yield f"vllm serve {served}{f' --tensor-parallel-size {parallel}' * (parallel > 1)}"
    for name in names:
        words = evaluation(manifest, name, run, served, served, folder)
        yield shlex.join(word.replace("{step}", "N") for word in words)

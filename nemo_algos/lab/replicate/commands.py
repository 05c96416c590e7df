"""An item's evaluations, and the commands that make it by hand."""

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_algos.config import at, find, load, read
from nemo_algos.engines.nemo.kinds import is_vlm
from nemo_algos.lab.replicate.manifest import Item, Paper, PaperEvaluation
from nemo_algos.lab.replicate.plan import place, seeded_overrides
from nemo_algos.preflight.check.judge import versions
from nemo_algos.preflight.check.snapshot import compose
from nemo_algos.preflight.check.snapshot import load as release

# convert_dcp_to_hf.py writes the tokenizer alone, of which vLLM cannot make an image's tokens
PROCESSOR = (
    "import sys, transformers as t; t.AutoProcessor.from_pretrained(sys.argv[1])"
    ".save_pretrained(sys.argv[2])"
)


def evaluations(manifest: Paper, item: Item) -> dict[str, list[str]]:
    """By evaluation, the runs of which the item takes numbers from it."""
    found: dict[str, dict[str, None]] = {name: {} for name in item.evaluations}
    chosen = {name: _benchmarks(manifest, name) for name in item.evaluations}
    for cell in item.cells():
        for name in [cell.evaluation] if cell.evaluation else item.evaluations:
            if chosen[name] & {*cell.benchmarks}:
                found[name][cell.run] = None
    for name in item.evaluations:
        if manifest.evaluations[name].every_checkpoint:
            found[name] |= dict.fromkeys(item.runs)
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
    """Of each run's first seed, in NeMo-RL's root: training, a checkpoint served, evaluations."""
    asked = evaluations(manifest, item)
    for run in item.needed_runs():
        folder = (out.resolve() / place(manifest, paper, run, 1)).as_posix()
        if manifest.trains(run):
            yield _training(manifest, run, folder)
        if names := [name for name, runs in asked.items() if run in runs]:
            yield from _evaluating(manifest, run, names, folder)


def _training(manifest: Paper, run: str, folder: str) -> str:
    recipe = ["nemo-algos", "train", manifest.of(run)[0].recipe]
    words = manifest.program(run) or [*recipe, *seeded_overrides(manifest, run, 1)]
    checkpoints = f"checkpointing.checkpoint_dir={folder}/checkpoints"
    return shlex.join([*words, checkpoints, f"logger.log_dir={folder}/logs"])


def _evaluating(manifest: Paper, run: str, names: list[str], folder: str) -> Iterator[str]:
    model, weights = manifest.of(run)[0], f"{folder}/hf"
    name, options = weights, ""
    if not manifest.trains(run):
        name = weights = model.base
    elif adapts(manifest, run):
        name, weights = "/".join(folder.split("/")[-3:]), model.base
        adapter = f"{name}={folder}/checkpoints/step_N/policy/weights/model"
        options = f" --enable-lora --max-lora-rank 64 --lora-modules {adapter}"
    else:
        yield from _converting(manifest, run, f"{folder}/checkpoints/step_N", weights)
    if any(serves(manifest.evaluations[name]) for name in names):
        parallel = model.serve.tensor_parallel * model.serve.nodes
        options += f" --tensor-parallel-size {parallel}" * (parallel > 1)
        yield f"vllm serve {weights}{options}"
    for evaluated in names:
        words = evaluation(manifest, evaluated, run, name, weights, folder)
        yield shlex.join(word.replace("{step}", "N") for word in words)


def _converting(manifest: Paper, run: str, step: str, weights: str) -> Iterator[str]:
    """A checkpoint as a model of Hugging Face's."""
    paths = f"--dcp-ckpt-path {step}/policy/weights --hf-ckpt-path {weights}"
    yield f"python examples/converters/convert_dcp_to_hf.py --config {step}/config.yaml {paths}"
    if program := processor(manifest, run):
        yield shlex.join(["python", "-c", program, manifest.of(run)[0].base, weights])


def adapts(manifest: Paper, run: str) -> bool:
    """Whether the run trains LoRA's weights alone, which vLLM serves over their model."""
    config = _composed(manifest.of(run)[0].recipe) if manifest.by_recipe(run) else {}
    return bool(at(config, "policy.dtensor_cfg.lora_cfg.enabled"))


def processor(manifest: Paper, run: str) -> str:
    """The program that puts what reads images beside a checkpoint; empty for a model of text."""
    return PROCESSOR if is_vlm(_composed(manifest.of(run)[0].recipe)["data"]) else ""


@functools.cache
def _composed(recipe: str) -> dict[str, Any]:
    """A recipe over NeMo-RL's config."""
    return compose(read(find(recipe)), release(versions(recipe)[0])).plain

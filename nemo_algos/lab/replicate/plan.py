"""What an item needs: its runs with GPUs, hours and price."""

import math
from pathlib import Path
from typing import NamedTuple

from nemo_algos.config import apply_overrides, at, find, read
from nemo_algos.lab.replicate.manifest import Item, Paper
from nemo_algos.preflight.check.judge import judge, refuse, versions
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rules.run import checkpoint_bytes
from nemo_algos.preflight.check.snapshot import load as release
from nemo_algos.preflight.plan import report
from nemo_algos.preflight.plan.gpus import GPUS
from nemo_algos.preflight.plan.layouts import plan

ASSUMED = 100  # steps, where the paper says no length


class Cost(NamedTuple):
    """Of one seed of a run. stated: whether its length is; fits: whether the GPUs hold it.

    disk: bytes of the checkpoints that it keeps, and of one more while it is written; None where
    they are adapters.
    """

    gpus: int
    steps: int
    stated: bool
    hours: float
    gpu_hours: float
    price: float | None
    fits: bool
    disk: float | None


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
        disk = _kept_bytes(judged, stated or ASSUMED)
        return Cost(p.run.layout.gpus, stated or ASSUMED, bool(stated), *spent, fits, disk)


def _kept_bytes(run: Preflight, steps: int) -> float | None:
    each = checkpoint_bytes(run)
    saved = math.ceil(steps / run["checkpointing.save_period"])
    keep = run["checkpointing.keep_top_k"] or saved
    return None if each is None else each * min(keep + 1, saved)


def total(manifest: Paper, costs: Costs, item: Item) -> tuple[float, float]:
    """GPU-hours of the item's runs, and bytes of their checkpoints without adapters."""
    paid = [costs.of(run) for run in trained_runs(manifest, item)]
    hours, disk = sum(c.gpu_hours for c in paid), sum(c.disk or 0 for c in paid)
    return hours * manifest.seeds, disk * manifest.seeds


def trained_runs(manifest: Paper, item: Item) -> list[str]:
    """The runs of the item that a recipe trains."""
    return [run for run in item.needed_runs() if manifest.by_recipe(run)]


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

"""What `nemo-algos plan` says in docs/ and benchmarks/README.md: published step times, the recipes.

A table replaces what stands between its line `<!-- plan: NAME -->` and the next `<!-- end -->`.
"""

import csv
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from nemo_algos.config import find, read
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import judge_composed
from nemo_algos.preflight.check.known_models import model
from nemo_algos.preflight.check.release import shipped
from nemo_algos.preflight.plan.layouts import Plan, gpu_of
from nemo_algos.preflight.plan.layouts import plan as planned
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "examples" / "configs" / "recipes"
PUBLISHED = ROOT / "benchmarks" / "published_step_times.csv"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"  # whose configs name no model, but a page that tells how


UNSEEN = "v0.7"  # the summary that came after the assumptions


class Beside(NamedTuple):
    """A published row, and what `plan` says beside it."""

    row: dict[str, str]
    plan: Plan

    @property
    def error(self) -> float:
        """Relative."""
        return self.plan.step_seconds / float(self.row["seconds"]) - 1


@cache
def beside_published() -> list[Beside]:
    """Each row, with the training batch of its summary."""
    out = []
    for row in csv.DictReader(PUBLISHED.open()):
        written: Any = {"engine": "nemo_rl", "method": {"name": "grpo"}}
        written["nemo_rl"] = {"config": f"recipes/llm/performance/{row['recipe']}.yaml"}
        plain = compose(OmegaConf.create(written), shipped()).plain
        plain["policy"]["train_global_batch_size"] = int(row["train_batch"])
        if row["summary"] != UNSEEN:  # whose recipes skip a pass, and have drafts of MTP
            plain["loss_fn"]["force_on_policy_ratio"] = False
            plain["policy"]["generation"]["vllm_kwargs"].pop("speculative_config", None)
        named = plain["policy"]["model_name"]
        known = model(DEEPSEEK if "deepseek-v3" in row["recipe"] else named)
        p = planned(plain, known, GPUS[row["system"]], float(row["mean_tokens"]))
        out.append(Beside(row, p))
    return out


def summary() -> Iterator[str]:
    """The median, the largest and the mean sign of the errors, seen and unseen, sync and async."""
    yield "| rows | step | number | median error | largest | planned too slow |"
    yield "|---|---|---|---|---|---|"
    for unseen, overlaps in product((True, False), (False, True)):
        errors = [
            each.error
            for each in beside_published()
            if (each.row["summary"] == UNSEEN) == unseen and each.plan.overlaps == overlaps
        ]
        name = "v0.7, no constant fitted" if unseen else "v0.5 and v0.6, constants in view"
        kind = "asynchronous" if overlaps else "synchronous"
        sizes = [*map(abs, errors)]
        share = f"{sum(e > 0 for e in errors)} of {len(errors)}"
        numbers = f"{statistics.median(sizes):.0%} | {max(sizes):.0%} | {share}"
        yield f"| {name} | {kind} | {len(errors)} | {numbers} |"


def published() -> Iterator[str]:
    """Every row, the worst first."""
    yield "| summary | recipe | GPUs | mean tokens | published s | plan s | error |"
    yield "|---|---|---|---|---|---|---|"
    for each in sorted(beside_published(), key=lambda each: -abs(each.error)):
        row = each.row
        cells = [row[k] for k in ("summary", "recipe", "system", "mean_tokens", "seconds")]
        cells += [f"{each.plan.step_seconds:,.0f}", f"{each.error:+.0%}"]
        yield f"| {' | '.join(cells)} |"


def of_recipe(name: str) -> Plan:
    """As `nemo-algos plan recipes/NAME.yaml` has it."""
    path = f"recipes/{name}.yaml"
    run = judge_composed(compose(read(find(path)), shipped()))[0]
    assert run.model
    return planned(run.plain, run.model, GPUS[gpu_of(run.plain)])


def scale() -> Iterator[str]:
    """The recipes of every method."""
    yield "| file | GB of a GPU in training | seconds of a step | GPU-hours for 100 steps |"
    yield "|---|---|---|---|"
    for name in (n for n in names() if n.split("-")[0] not in PAPERS):
        p = of_recipe(name)
        memory = f"{sum(p.training.values()) / 1e9:.0f} of {p.run.gpu.memory / 1e9:.0f}"
        hours = p.gpu_hours / p.steps * 100
        yield f"| `{name}` | {memory} | {p.step_seconds:,.0f} | {hours:,.0f} |"


def large() -> Iterator[str]:
    """What `plan` says of a 70B recipe, in a line."""
    name = "llama3.3-70b-8n8g-tp4pp4"
    p = of_recipe(name)
    fits = f"{sum(p.training.values()) / 1e9:.0f} of {p.run.gpu.memory / 1e9:.0f} GB of a GPU"
    hours = f"{p.gpu_hours / p.steps * 100:,.0f} GPU-hours for 100 steps"
    yield f"`recipes/{name}.yaml`: {fits}, {p.step_seconds:,.0f} s a step, {hours}"
    yield "([all recipes](scale.md#recipes))."


PAPERS = ("etr", "quatro", "erpo", "apmpo")
TABLES: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "docs/plan.md": {"70b": large, "published": summary},
    "benchmarks/README.md": {"published": published},
    "docs/scale.md": {"scale": scale},
}


def names() -> list[str]:
    """Of the shipped recipes, but for those of a CPU."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def page(name: str) -> str:
    """A page with its tables as they are now."""
    text = (ROOT / name).read_text()
    for table, lines in TABLES[name].items():
        before, rest = text.split(f"<!-- plan: {table} -->\n")
        after = rest.partition("<!-- end -->")[2]
        body = "\n".join(lines())
        text = f"{before}<!-- plan: {table} -->\n{body}\n<!-- end -->{after}"
    return text


if __name__ == "__main__":
    for each in TABLES:
        (ROOT / each).write_text(page(each))

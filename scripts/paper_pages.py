"""docs/papers/PAPER.md of each manifest: what a paper claims, and what can be made again of it.

    uv run scripts/paper_pages.py

tests/docs/test_paper_pages.py holds the pages to it.
"""

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from nemo_algos.lab.replicate.manifest import Paper, names, paper
from nemo_algos.lab.replicate.plan import ASSUMED, Costs, total, trained_runs
from nemo_algos.lab.replicate.toy import toy

PAGES = Path(__file__).parents[1] / "docs" / "papers"
QUICK = {"etr": "figure5", "quatro": "table2", "erpo": "figure4", "apmpo": "table8"}  # in the docs
HEAD = """# {name}

{summary}

```bash
uv run nemo-algos replicate {paper}                # its tables and figures
uv run nemo-algos replicate {paper} table1         # runs, costs, commands
uv run nemo-algos replicate --toy {paper} {quick}  # a tiny model, here
```

[How real runs start; the toy](index.md).

## Tables and figures
"""


def page(name: str) -> str:
    """A paper's page."""
    known = paper(name)
    title = f"[{known.title}]({known.link})" if known.link else known.title
    summary = fill(f"{title}. {known.claim}", 100, break_on_hyphens=False)
    head = HEAD.format(name=name.upper(), paper=name, summary=summary, quick=QUICK[name])
    parts = _items(known), _runs(known), _data(known), _open(known)
    return "\n".join([head, *(line for part in parts for line in part)]) + "\n"


def _items(known: Paper) -> Iterator[str]:
    costs, small = Costs(known, None), toy(known).items
    yield "| item | title | printed numbers | GPU-hours | disk, GB | here |"
    yield "|---|---|---|---|---|---|"
    texts = {name: item for name, item in known.items.items() if item.kind == "text"}
    for name, item in ((n, i) for n, i in known.items.items() if n not in texts):
        printed = sum(cell.printed is not None for cell in item.cells())
        note = f" ({item.note})" if item.note else ""
        hours, disk = total(known, costs, item)
        spent = f"{hours:,.0f} | {disk / 1e9:,.0f}" if disk else f"{hours:,.0f} | "
        needs = f"{spent if hours else ' | '} | {known.state(item)}{note}"
        yield f"| {name} | {item.title} | {printed or ''} | {needs} |"
    nothing = ", ".join(f"{name} ({item.note})" for name, item in texts.items())
    yield "\n" + _wrapped(f"Nothing to run: {nothing}.\n")
    yield ""
    runs = {run for item in known.items.values() for run in trained_runs(known, item)}
    paid = [costs.of(run) for run in sorted(runs)]
    hours = known.seeds * sum(cost.gpu_hours for cost in paid)
    said = f"GPU-hours ({known.gpu}) are those of [plan](../plan.md), {hours:,.0f} for all runs: "
    said += "items share them."
    if not all(cost.stated for cost in paid):
        said += f" The paper states no length, so they count {ASSUMED} steps."
    if any(method.program for method in known.methods.values()):
        said += " Runs of `run_sft.py` are not in them."
    adapters = "The checkpoints are small: LoRA adapters."
    yield _wrapped(said if all(cost.disk for cost in paid) else f"{said} {adapters}")
    without = [n for n, item in known.items.items() if n not in small and item.kind != "text"]
    if without:
        yield f"\n{', '.join(without)}: no toy form."


def _runs(known: Paper) -> Iterator[str]:
    yield "\n## Runs\n"
    yield "| model | starts from | recipe and its keys |\n|---|---|---|"
    for name, model in known.models.items():
        keys = " ".join([model.recipe, *model.overrides])
        recipe = f"`{keys}`" if model.recipe else "evaluated only"
        yield f"| {name} | {model.base} | {recipe} |"
    yield "\n| method | keys |\n|---|---|"
    for name, method in known.methods.items():
        keys = " ".join(method.program or method.keys)
        yield f"| {name} | {f'`{keys}`' if keys else 'the model as it is'} |"


def _data(known: Paper) -> Iterator[str]:
    yield "\n## Data\n"
    for name, data in known.data.items():
        facts = [f"{data.rows:,} rows" if data.rows else "", data.source]
        facts += [f"sha256 {data.sha256}" if data.sha256 else ""]
        yield _listed(f"**{name}**: {'; '.join(fact for fact in facts if fact)}")


def _open(known: Paper) -> Iterator[str]:
    yield "\n## What differs, or the paper does not state\n"
    yield "| | paper | here |\n|---|---|---|"
    yield from (f"| {topic} | {theirs} | {ours} |" for topic, theirs, ours, *_ in known.settings)
    if known.misprints:
        yield "\n## Misprints\n"
        yield from (_listed(f"**{one.item}**: {one.says}") for one in known.misprints)


def _wrapped(text: str) -> str:
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _listed(text: str) -> str:
    return fill(f"- {text}", 100, subsequent_indent="  ", break_long_words=False)


if __name__ == "__main__":
    for name in names():
        (PAGES / f"{name}.md").write_text(page(name))

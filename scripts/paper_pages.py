"""docs/papers/PAPER.md of each manifest: what a paper claims, and what can be made again of it.

    uv run scripts/paper_pages.py

tests/docs/test_paper_pages.py holds the pages to it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from nemo_algos.lab.replicate.manifest import Paper, names, paper
from nemo_algos.lab.replicate.toy import toy

PAGES = Path(__file__).parents[1] / "docs" / "papers"
QUICK = {"etr": "figure5", "quatro": "table2", "erpo": "figure4", "apmpo": "table8"}  # in the docs
END = "\n`scripts/paper_pages.py` writes this page from `examples/configs/papers/`."
HEAD = """# {name}

{title}. {claim}

```bash
uv run nemo-algos replicate {paper}                # its tables and figures
uv run nemo-algos replicate {paper} table1         # runs, GPUs, hours, data, evaluations, commands
uv run nemo-algos replicate --toy {paper} {quick}  # the chain on a tiny model, here
```

[The four papers](index.md) says how the real runs start and how `--report` sets our numbers beside
the printed ones. Nothing here has been run on GPUs by us.

## Tables and figures
"""


def page(name: str) -> str:
    """A paper's page."""
    known = paper(name)
    title = f"[{known.title}]({known.link})" if known.link else known.title
    head = HEAD.format(
        name=name.upper(), paper=name, title=title, claim=known.claim, quick=QUICK[name]
    )
    parts = _items(known), _runs(known), _data(known), _open(known), _toy(name)
    return "\n".join([head, *(line for part in parts for line in part), END]) + "\n"


def _items(known: Paper) -> Iterator[str]:
    yield "| item | title | printed numbers | here |"
    yield "|---|---|---|---|"
    for name, item in known.items.items():
        printed = sum(cell.printed is not None for cell in item.cells())
        note = f" ({item.note})" if item.note and item.kind != "text" else ""
        yield f"| {name} | {item.title} | {printed or ''} | {known.state(item)}{note} |"
    small = toy(known).items
    without = [n for n, item in known.items.items() if n not in small and item.kind != "text"]
    if without:
        yield f"\n{', '.join(without)}: no toy form."


def _runs(known: Paper) -> Iterator[str]:
    yield "\n## Runs\n\nA run is a model's recipe with a method's keys.\n"
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
        yield f"- **{name}**: {'; '.join(fact for fact in facts if fact)}"


def _open(known: Paper) -> Iterator[str]:
    yield "\n## What the paper leaves open, or NeMo-RL does otherwise\n"
    yield "| | paper | here |\n|---|---|---|"
    yield from (f"| {topic} | {theirs} | {ours} |" for topic, theirs, ours in known.settings)
    if known.misprints:
        yield "\n## Misprints\n"
        yield from (f"- **{misprint.item}**: {misprint.says}" for misprint in known.misprints)


def _toy(name: str) -> Iterator[str]:
    """The stored numbers of scripts/toy_results.py."""
    stored = json.loads((PAGES / "toy.json").read_text()).get(name, [])
    yield "\n## The toy\n"
    yield f"`nemo-algos replicate --toy {name}` writes its pages and pictures to"
    yield f"`runs/replicate/toy-report/{name}/index.html`."
    if stored:
        yield "The numbers are of one seed of a tiny model (`examples/configs/local.yaml`). They"
        yield "say that the chain runs, and nothing about a method (`scripts/toy_results.py`).\n"
        yield "| item | run | number | toy (95 % interval over problems) |\n|---|---|---|---|"
        yield from (f"| {' | '.join(line)} |" for line in stored)


if __name__ == "__main__":
    for name in names():
        (PAGES / f"{name}.md").write_text(page(name))

"""A paper's items made again: a page, and of each item a picture, Markdown and CSV."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from nemo_algos import page
from nemo_algos.lab.replicate import pictures, table
from nemo_algos.lab.replicate.found import Results
from nemo_algos.lab.replicate.manifest import Item, Paper
from nemo_algos.lab.report.figure import Figure
from nemo_algos.lab.report.matrix import Matrix


class Made(NamedTuple):
    """An item made again. drawn: SVG of each picture, its caption, its lines' labels and colors."""

    name: str
    item: Item
    tables: list[table.ComparedTable]
    figures: list[Figure | Matrix]
    drawn: list[tuple[Markup, str, list[tuple[str, str]]]]
    missing: list[str]
    notes: list[str]


def write(
    manifest: Paper, paper: str, items: dict[str, Item], folders: Sequence[Path], out: Path
) -> list[Made]:
    """OUT/index.html with all items, a Markdown file of each, a PNG and CSV of each picture.

    Raises ValueError that says what is wrong with a run's folder.
    """
    results = Results(manifest, paper, folders)
    made = [_make(results, name, item, out) for name, item in items.items()]
    for one in made:
        (out / f"{one.name}.md").write_text(_markdown(one, manifest), encoding="utf-8")
    values = {
        "paper": manifest,
        "name": paper,
        "made": made,
        "refused": list(results.refused),
        "misprints": [m for m in manifest.misprints if m.item in items],
        "written": time.strftime("%Y-%m-%d %H:%M"),
    }
    page.write(out / "index.html", "replicate.html", values)
    return made


def _make(results: Results, name: str, item: Item, out: Path) -> Made:
    out.mkdir(parents=True, exist_ok=True)
    before = len(results.refused)
    tables = table.tables(results, item)
    missing = dict.fromkeys(reason for c in table.every(tables) for reason in c.reasons)
    label = results.manifest.label
    figures = [
        replace(figure, title=f"{label}{figure.title}")
        for figure in pictures.figures(results, name, item, missing)
    ]
    drawn = [(Markup(f.save(out)), f.caption, _legend(f)) for f in figures]
    for i, one in enumerate(tables):
        if any(cell.value for cell in table.every([one])):
            path = out / f"{name}{f'_{i}' if i else ''}.png"
            drawn.append((Markup(pictures.draw(one, f"{label}{item.title}", path)), "", []))
    if tables:
        (out / f"{name}.csv").write_text(table.as_csv(tables), encoding="utf-8")
    notes = [note for note in (item.note, *table.notes(tables, results.manifest.seeds)) if note]
    refused = list(results.refused)[before:]
    return Made(name, item, tables, figures, drawn, [*refused, *missing], notes)


def _legend(figure: Figure | Matrix) -> list[tuple[str, str]]:
    """Labels and colors of a figure's lines; a matrix has its labels above its panels."""
    lines = figure.lines if isinstance(figure, Figure) else ()
    return [(line.label, line.color) for line in lines]


def _markdown(made: Made, manifest: Paper) -> str:
    parts = [f"# {manifest.label}{made.name}: {made.item.title}\n", table.markdown(made.tables)]
    parts += [f"![{figure.title}]({figure.name}.png)\n" for figure in made.figures]
    parts += [f"The paper says: {sentence}.\n" for sentence in made.item.said]
    parts += [f"{note}\n" for note in made.notes]
    parts += ["Missing:\n", *(f"- {reason}" for reason in made.missing)] if made.missing else []
    return "\n".join(parts) + "\n"


def summary(made: Made) -> dict[str, Any]:
    """How many cells there are, how many have a number of ours, and how they lie."""
    cells = list(table.every(made.tables))
    verdicts = [cell.verdict for cell in cells if cell.verdict]
    return {
        "cells": len(cells),
        "ours": sum(cell.value is not None for cell in cells),
        **{word: verdicts.count(word) for word in ("within", "above", "below")},
        "figures": len(made.figures),
        "missing": len(made.missing),
    }

"""The verdict as one HTML file that needs nothing else, in the report's style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nemo_algos.lab.mismatch.causes import CAUSES
from nemo_algos.lab.mismatch.figures import drawn
from nemo_algos.lab.mismatch.verdict import Verdict


def write(path: Path, verdict: Verdict, files: Sequence[str]) -> None:
    """The page; files: their names, as it shows them."""
    loaders = [PackageLoader(f"nemo_algos.lab.{name}") for name in ("mismatch", "report")]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.loader, environment.undefined = ChoiceLoader(loaders), StrictUndefined
    pictures = [(Markup(svg), caption) for svg, caption in drawn(verdict.tokens)]
    page = {"verdict": verdict, "numbers": verdict.numbers(), "causes": CAUSES}
    html = environment.get_template("mismatch.html").render(page, figures=pictures, files=files)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8", errors="replace")

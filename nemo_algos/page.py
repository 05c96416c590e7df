"""Pages: each one HTML file that needs nothing else; its template extends page.html."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def write(path: Path, template: str, values: dict[str, Any]) -> None:
    """The template with these values as a file; its folder is made."""
    html = environment().get_template(template).render(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8", errors="replace")


@cache
def environment() -> Environment:
    """Of the templates: texts are escaped, a value that is not given is an error."""
    found = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=PackageLoader("nemo_algos"),
        undefined=StrictUndefined,
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return found

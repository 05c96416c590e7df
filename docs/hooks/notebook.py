"""mkdocs hook: examples/first_hour.ipynb is the page first_hour.md, with the outputs git has."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """The pages and pictures, with the notebook's among them."""
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter  # of docs/requirements.txt only

    name = NOTEBOOK.stem
    made = {"output_files_dir": f"images/{name}", "unique_key": name}
    text, resources = MarkdownExporter().from_filename(str(NOTEBOOK), resources=made)
    text = text.replace("](../docs/", "](")  # links from examples/, where the notebook lies
    text = text.replace("![png](", "![What the cell draws](")
    files.append(File.generated(config, f"{name}.md", content=text))
    for path, picture in resources["outputs"].items():
        files.append(File.generated(config, posixpath.normpath(path), content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with the site's own page where it links the notebook."""
    return markdown.replace(f"](../examples/{NOTEBOOK.name})", f"]({NOTEBOOK.stem}.md)")

"""mkdocs hook: what a git host shows of a page, the site shows too.

$..$ becomes MathML (arithmatex has marked it, code apart), a fence's words say what its commands
need, and a link out of docs/ becomes the path it names: the site has no page for it.
"""

from __future__ import annotations

import html
import posixpath
import re
import tomllib
from itertools import zip_longest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
FENCE = re.compile(r"^```bash ([a-z ]+)$", re.MULTILINE)
UNDER = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")
NEEDS = {
    "gpu": "needs a GPU",
    "cluster": "needs a cluster",
    "network": "needs a network",
    "docker": "needs docker",
    "data": "needs the data",
    "model": "needs the model",
    "mac": "needs a Mac",
    "slow": "takes minutes",
    "fails": "is refused",
}


def on_config(config: Any, **_: Any) -> Any:
    """The site's settings; its footer links the repository, where pyproject.toml has an address."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository")
    if address:
        link = {"icon": "fontawesome/brands/git-alt", "link": address, "name": "Source"}
        config["extra"]["social"] = [link]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as mkdocs is to read it."""
    return titled(unlinked(markdown, posixpath.dirname(page.file.src_uri)))


def on_page_content(content: str, **_: Any) -> str:
    """The page's HTML, with its formulas as MathML."""
    return MARKED.sub(_mathml, content)


def titled(markdown: str) -> str:
    """```bash gpu slow  ->  ```bash title="needs a GPU, takes minutes"."""
    return FENCE.sub(lambda m: f'```bash title="{_needs(m[1].split())}"', markdown)


def unlinked(markdown: str, folder: str) -> str:
    """[text](../../README.md) -> text (`README.md`); links within docs/ stay."""

    def path(match: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if outside.startswith("docs/"):
            return match[0]
        return f"`{outside}`" if match[1].strip("`") in outside else f"{match[1]} (`{outside}`)"

    return LINK.sub(path, markdown)


def _needs(words: list[str]) -> str:
    return ", ".join(NEEDS[word] for word in words)


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # of docs/requirements.txt only

    display = "block" if match[1] == "div" else "inline"
    math = ElementTree.fromstring(convert(html.unescape(match[2]), "", display))
    for node in math.iter():
        typeset(node, display == "block")
    return ElementTree.tostring(math, encoding="unicode")


def typeset(node: ElementTree.Element, display: bool) -> None:
    """What latex2mathml leaves to the browser.

    Limits of a sum in brackets, primes at the height of the font's own, spaces around log."""
    children = list(node)
    if display and node.tag in UNDER and children[0].text == "\u2211":
        node.tag = UNDER[node.tag]
    if node.tag == "msup" and children[1].text == "\u2032":
        node.tag, children[1].tag = "mrow", "mo"
        children[1].attrib = {"lspace": "0", "rspace": "0"}
    for child, after in zip_longest(children, children[1:]):
        if child.tag in ("mi", "mo") and re.fullmatch("[a-z]{2,}", child.text or ""):
            opens = after is not None and after.text == "("
            child.tag = "mo"
            child.attrib = {"lspace": ".17em", "rspace": "0" if opens else ".17em"}

"""The docs site, without building it (`make docs` does, and ends at a broken link).

The nav and the pages are the same, links name files, the hook reads pages as a git host does, and
the citation is this version's.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import doc_commands
import pytest
import yaml
from markdown.extensions.toc import slugify

import nemo_algos
from nemo_algos.algorithms.methods import METHODS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^[ \t]*```.*?^[ \t]*```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def loaded(path):
    """A python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = loaded(DOCS / "hooks" / "pages.py")


def files(nav):
    """The pages of a nav, at any depth."""
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from files(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_nav_once_and_every_entry_is_a_page():
    there = [path.relative_to(DOCS).as_posix() for path in PAGES[1:]]
    made = "first_hour.md"  # of a notebook, by docs/hooks/notebook.py
    assert sorted([*files(SITE["nav"]), SITE["not_in_nav"]]) == sorted([*there, made])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_name_files(page):
    links = [link.partition("#")[0] for link in LINK.findall(CODE.sub("", page.read_text()))]
    local = [link for link in links if link and not re.match(r"\w+:", link)]
    named = [(page.parent / link).resolve() for link in local]
    assert [path for path in named if not path.exists()] == []


BUILD = re.search(r"mkdocs (build .*)", (ROOT / "Makefile").read_text())[1].split()
BROKEN = ("[a](gone.md)", "[a](b.md#gone)", "[a](#gone)", "![a](gone.png)", "[a](/b.md)", "[a](b)")


@pytest.mark.parametrize("broken", [(), BROKEN], ids=["sound", "broken"])
def test_make_docs_ends_at_a_broken_link(broken, tmp_path):
    """Its own command and its settings, on two pages."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# B\n\n## There\n")
    links = "\n\n".join(("[a](b.md#there)", *broken))
    (tmp_path / "docs" / "index.md").write_text(links)
    settings = {"site_name": "two", "validation": SITE["validation"]}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "mkdocs", *BUILD]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == bool(broken), ended.stderr
    assert ended.stderr.count("WARNING -  Doc file") == len(broken)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_anchors_of_pages_that_are_not_in_the_site(page):
    links = LINK.findall(CODE.sub("", (ROOT / page).read_text()))
    named = [link.split("#") for link in links if "#" in link and "://" not in link]
    for path, anchor in named:
        headings = re.findall(r"^#+ (.*)", (ROOT / (path or page)).read_text(), re.MULTILINE)
        assert anchor in {slugify(heading, "-") for heading in headings}, path


def test_links_out_of_the_docs_become_paths():
    dual = "[the file](../../nemo_algos/algorithms/core/dual.py)"
    text = f"{dual}, [`etr.py`](../../nemo_algos/etr.py#L3)"
    stays = "[a](../faq.md), [b](erpo.md#config), [c](https://x.org/../y)"
    assert pages.unlinked(f"{text}, {stays}", "methods") == (
        f"the file (`nemo_algos/algorithms/core/dual.py`), `nemo_algos/etr.py`, {stays}"
    )
    assert pages.unlinked("[README](../README.md)", "") == "`README.md`"


def test_a_block_says_what_its_commands_need():
    assert pages.titled("```bash gpu slow\n") == '```bash title="needs a GPU, takes minutes"\n'
    assert pages.titled("```bash\n```\n```python\n") == "```bash\n```\n```python\n"
    marks = {
        m for p in PAGES for found in pages.FENCE.findall(p.read_text()) for m in found.split()
    }
    assert marks <= set(pages.NEEDS)
    assert {*doc_commands.NEEDS, "fails"} == set(pages.NEEDS)


def test_the_api_names_modules_of_ours_and_every_method():
    named = re.findall(r"^::: (\S+)$", "\n".join(p.read_text() for p in PAGES), re.MULTILINE)
    assert len(named) == len(set(named)) > 40
    assert [name for name in named if importlib.util.find_spec(name) is None] == []
    assert set(METHODS.modules.values()) <= set(named)


def test_nothing_is_fetched_at_view():
    assert SITE["theme"]["font"] is False
    own = " ".join(path.read_text() for path in (DOCS / "assets").iterdir())
    assert not re.search(r"https?://", own.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    # search from a file: the plugin would name one of a host; it knows ours by its name
    assert "offline" in SITE["plugins"] and SITE["theme"]["logo"] == SITE["theme"]["favicon"]
    local = [*SITE["extra"]["polyfills"], SITE["theme"]["logo"]]
    assert "iframe-worker" in local[0] and all((DOCS / path).is_file() for path in local)
    assert not {"extra_javascript", "repo_url"} & set(
        SITE
    )  # material asks GitHub for a repo's stars


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == nemo_algos.__version__
    assert f"version = {{{nemo_algos.__version__}}}" in (DOCS / "index.md").read_text()

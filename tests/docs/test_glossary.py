"""The glossary: pages link what it explains, and those that are read first every word of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
FIRST = [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "quickstart.md"]
PAGES = [FIRST[0], *sorted({*(ROOT / "docs").rglob("*.md")} - {GLOSSARY})]
LINK = re.compile(r"\]\((?:docs/|(?:\.\./)*)glossary\.md#([\w-]+)\)")
NOT_PROSE = re.compile(r"^```.*?^```|^#.*?$|`[^`\n]*`|\$[^$\n]*\$|\]\([^)\n]*\)", re.M | re.S)
# what a reader who is new here cannot know, as it is written in sentences and tables
WORDS = {
    "passk": r"pass@\w+",
    "ucck": r"UCC(@\w+)?\b",
    "distinct": r"\bdistinct\b",
    "flat-group": r"flat group",
    "unjudged": r"unjudged|not judged",
    "held-out": r"held[- ]out",
    "clip-fraction": r"clip fraction",
    "staleness": r"staleness",
    "mismatch": r"\bmismatch\b",
    "refit": r"\brefit\b",
    "surrogate": r"\bsurrogate\b",
    "driver-half-worker-half": r"(driver|worker) half",
    "micro-batch": r"micro-batch",
    "micro-macro": r"\b(micro|macro)\b(?!-)",
    "rollout-batch": r"rollout batch",
    "token-trace": r"token trace",
    "golden-numbers": r"golden numbers",
    "bit-equal": r"bit-equal",
    "warm-start": r"warm start",
    "entropy": r"\bentropy\b",
}


def slug(heading):
    """As git hosts and mkdocs name a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


def terms():
    return [slug(h) for h in re.findall(r"^### (.+)$", GLOSSARY.read_text(), re.MULTILINE)]


def linked(page):
    return LINK.findall(page.read_text())


def test_every_term_is_explained_once_and_linked_from_some_page():
    found, explained = terms(), GLOSSARY.read_text().split("\n### ")[1:]
    assert len(found) == len(set(found)) > 25
    assert [text for text in explained if len(text.split()) < 15] == []
    assert [t for t in found if not any(t in linked(page) for page in PAGES)] == []


def test_every_link_into_the_glossary_is_to_a_term():
    own = set(re.findall(r"\]\(#([\w-]+)\)", GLOSSARY.read_text()))
    assert own | {t for page in PAGES for t in linked(page)} <= set(terms())
    assert set(WORDS) <= set(terms())


def unexplained(text):
    """Words in its sentences that it links nowhere into the glossary."""
    prose, links = NOT_PROSE.sub(" ", text), LINK.findall(text)
    return [t for t, word in WORDS.items() if re.search(word, prose, re.I) and t not in links]


@pytest.mark.parametrize("page", FIRST, ids=lambda p: p.name)
def test_pages_that_are_read_first_link_the_words_they_use(page):
    assert unexplained(page.read_text()) == []


def test_a_word_without_its_link_is_seen():
    assert unexplained("A `flat group`, and a [flat group](docs/glossary.md#flat-group).") == []
    assert unexplained("UCC@64 and [pass@4](glossary.md#passk)") == ["ucck"]

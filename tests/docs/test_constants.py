"""Sizes and versions that several pages name are those of the code and of the environments."""

import re
from pathlib import Path

import pytest

from nemo_algos.engines.local.schema import SHAPES
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import WARM_STEPS

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "tests" / "real" / "peers"
FOLDERS = (ROOT / "docs", ROOT / "benchmarks", PEERS)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "first_hour.ipynb"]
PAGES += sorted(page for folder in FOLDERS for page in folder.rglob("*.md"))
TEXT = "\n".join(page.read_text() for page in PAGES)


def test_the_countdown_models_have_as_many_parameters():
    made = [Tiny(shape) for shape in SHAPES.values()]
    sizes = {f"{sum(p.numel() for p in model.parameters()):,}" for model in made}
    assert set(re.findall(r"(\d{3},\d{3}) parameters", TEXT)) == sizes


def test_they_are_taught_for_as_many_steps():
    named = re.findall(r"in (\d+)\s+(?:supervised|fixed)\s+steps", TEXT)
    assert len(named) == 2 and set(named) == {str(WARM_STEPS)}


@pytest.mark.parametrize("name", ["TRL", "verl", "ms-swift", "OpenRLHF"])
def test_a_peers_version_is_the_one_that_is_run(name):
    pins = "".join((PEERS / file).read_text() for file in ("requirements.txt", "sources.txt"))
    pinned = re.search(rf"^{name}[>=]=([\d.]+)", pins, re.MULTILINE | re.IGNORECASE)
    assert pinned
    named = {version.rstrip(".") for version in re.findall(rf"\b{name} (\d+\.\d[\d.]*)", TEXT)}
    exact = pinned[1].split(".")
    assert named
    assert [v for v in named if v.split(".")[:2] != exact[:2]] == []

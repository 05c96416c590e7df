"""constraints.txt pins every direct dependency, within pyproject.toml's ranges."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = dict(line.split("==") for line in LINES if not line.startswith("#"))


@pytest.mark.parametrize("extra", [None, "engine", "lab", "smollm2", "lora"])
def test_every_dependency_is_pinned_within_its_range(extra):
    wanted = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    for requirement in map(Requirement, (w for w in wanted if not w.startswith("nemo-algos["))):
        assert requirement.specifier.contains(PINS[requirement.name]), requirement
    assert all(re.fullmatch(r"[\w.+]+", version) for version in PINS.values())

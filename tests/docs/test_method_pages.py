"""docs/methods: each page's config, commands and combinations are accepted; written tables hold."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from nemo_algos import config
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.preflight.check.local.judge import parse

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples" / "configs"
COMMAND = re.compile(r"^uv run nemo-algos train (\S+)([^#\n]*)", re.MULTILINE)
BLOCK = re.compile(r"^## Use it\n.*?^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
every_page = pytest.mark.parametrize("name", [*STUDIED, "index"])


def page(name):
    return (ROOT / "docs" / "methods" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", STUDIED)
def test_the_config_is_the_shipped_one(name):
    block = yaml.safe_load(BLOCK.search(page(name))[1])
    shipped = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert build(shipped["method"]) == build(block["method"])
    assert build(name).name == name and (CONFIGS / block["defaults"]).exists()


@every_page
def test_the_commands_are_accepted(name):
    commands = COMMAND.findall(page(name))
    assert commands or name == "index"
    for file, overrides in commands:
        parse(config.load(CONFIGS / file, overrides.split()))


@every_page
def test_the_combinations_have_a_meaning(name):
    for written in re.findall(r"`(\{[^`]+\})`", page(name)):
        assert "+" in build(yaml.safe_load(written)).name


# ---- pages that scripts write


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_list_of_methods_is_current():
    written = (ROOT / "docs" / "methods" / "zoo.md").read_text()
    assert written == script("method_index").page(), "run scripts/method_index.py"


@pytest.mark.long
def test_the_tables_of_plan_are_current():
    made = script("plan_tables")
    for name in made.TABLES:
        assert (ROOT / name).read_text() == made.page(name), "run scripts/plan_tables.py"

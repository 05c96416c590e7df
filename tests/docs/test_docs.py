"""The python blocks of README.md and docs/*.md run, and the method of docs/add_a_method.md trains.

A block that begins with `# a/path.py` is that file. Any other block is a program, run after those
above it on its page, beside the files.
"""

import ast
import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml
from batches import close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core import groups
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.config import SHIPPED

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.py)\n")


def blocks(text, language):
    return [body for name, body in FENCE.findall(text) if name == language]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """On the path and current; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    ours = {path.stem for path in tmp_path.iterdir()}
    for name in [name for name in sys.modules if name.split(".")[0] in ours]:
        del sys.modules[name]


def execute(page, folder):
    """Write the page's files and run its programs; how many of each."""
    programs, files = [], 0
    for body in blocks(page.read_text(), "python"):
        if match := FILE.match(body):
            path = folder / match[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)
            files += 1
        else:
            programs.append(body)
    importlib.invalidate_caches()
    if programs:
        (folder / "page.py").write_text("\n".join(programs))
        runpy.run_path(str(folder / "page.py"))
    return files, len(programs)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_python_block_runs(page, folder):
    text = page.read_text()
    assert sum(execute(page, folder)) == text.count("```python")
    for body in blocks(text, "python"):
        ast.parse(body)


def test_the_method_of_the_page_is_the_one_it_describes(folder):
    """Other numbers than the page's: p = 1/4 in a group of four, so clip_high = 0.2 (1 + 3/4)."""
    page = ROOT / "docs" / "add_a_method.md"
    assert execute(page, folder) == (2, 3)
    block, with_term = blocks(page.read_text(), "yaml")
    algorithm = build(yaml.safe_load(block)["method"])
    assert (algorithm.name, algorithm.mean, algorithm.needs) == ("rare", "sequence", frozenset())
    batch = make(rewards=((1.0, 0.0, 0.0, 0.0),), spread=0.4)
    signals = algorithm.signals(batch.rollouts, {})
    close(signals.high, 0.35)
    assert signals.metrics == {"rare/clip_high": pytest.approx(0.35)}
    name = "my_package.my_module:MINE"
    as_grpo = {"name": name, "failure_weight": 1, "widen": 0}
    close(run(as_grpo, batch, LossConfig()).grad, run("grpo", batch, LossConfig()).grad)
    failures = groups.advantages(batch.rollouts.rewards, batch.rollouts.groups) < 0
    whole, half = (run({"name": name, "failure_weight": w}, batch, LossConfig()) for w in (1, 0.5))
    close(half.grad[failures], whole.grad[failures] / 2)
    assert (half.grad[~failures] == whole.grad[~failures]).all()
    assert float(whole.grad[failures].abs().max()) > 0.01
    short = build(yaml.safe_load(with_term)["method"])
    weights = short.signals(make().rollouts).extras["term_short"][:, 0]
    lengths, won = make().rollouts.lengths, make().rollouts.rewards > 0
    counted = won & (lengths > 0) & (lengths < 6)
    assert torch.equal(weights > 0, counted) and counted.any()
    assert float((weights * lengths).sum()) == pytest.approx(0.1)


def test_the_single_controllers_config_is_the_shipped_one():
    page = (ROOT / "docs" / "nemo_rl.md").read_text()
    (block,) = [b for b in blocks(page, "yaml") if "single_controller.yaml}" in b]
    assert yaml.safe_load(block) == yaml.safe_load((SHIPPED / "single_controller.yaml").read_text())


def test_a_block_that_fails_is_seen(folder):
    page = folder / "page.md"
    page.write_text(
        "```python\n# a/b.py\nX = 1\n```\n\n```python\nfrom a.b import X\nassert X == 2\n```\n"
    )
    with pytest.raises(AssertionError):
        execute(page, folder)

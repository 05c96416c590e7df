"""What README.md and docs/index.md show first is what their lines give; the notebook is whole."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("screen", ROOT / "scripts" / "first_screen.py")
assert SPEC and SPEC.loader
screen = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(screen)
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


@pytest.mark.parametrize("path", screen.PARTS, ids=lambda path: path.name)
def test_the_page_has_the_numbers_of_now(path):
    assert path.read_text() == screen.page(path), "run scripts/first_screen.py"


def test_the_picture_is_of_now():
    assert screen.PICTURE.read_text() == screen.picture(), "run scripts/first_screen.py"


def test_the_numbers_by_hand():
    """Half of the group is right, so A is 1 / 2 over a deviation of sqrt(1 / 3), up or down.

    Ratios are e^-0.4 to e^0.3 in 20 steps: the last four are above 1.2, of a right response.
    """
    tanh = math.tanh(0.5 * math.sqrt(3))
    wide, narrow = 0.3 + 0.1 * tanh, 0.3 - 0.1 * tanh
    above = [i for i in range(15, 20) if math.exp(-0.4 + 0.7 * i / 19) > 1.2]
    said = screen.numbers()
    assert (len(above), wide > math.exp(0.3) - 1) == (4, True)
    assert "**4 of 20 tokens, ETR 0**" in said
    assert f"±{wide:.2f} for right" in said and f"±{narrow:.2f} for wrong" in said


def test_badges_are_there_with_an_address_alone(monkeypatch):
    monkeypatch.setattr(screen, "address", lambda: "")
    assert screen.badges() == ""
    monkeypatch.setattr(screen, "address", lambda: "https://git.example/a/b")
    assert "(https://git.example/a/b/actions)" in screen.badges()


def test_the_notebook_has_the_outputs_of_a_run_from_top_to_bottom():
    text = NOTEBOOK.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warning
    assert len(text) < 400_000
    written = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"/(root|home|tmp|work|Users)/|\\u001b", written)

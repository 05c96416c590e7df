"""docs/architecture.md names every place where something of NeMo-RL is replaced."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("replaced", ROOT / "scripts" / "replaced.py")
assert SPEC and SPEC.loader
replaced = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(replaced)

# what somebody may add, each in a function `new`
ADDED = {
    "setattr": "setattr(grpo, 'setup', None)",
    "attribute": "grpo.setup = None",
    "of an argument": "logger.close = None",
    "entry": "grpo.REGISTRY['a'] = 1",
    "in place": "REGISTRY |= {1}",
    "context": "with versions.replace_attributes((grpo, 'a', 1)): pass",
    "script": "runpy.run_path('x')",
    "wrapped": "return REGISTRY.__ray_metadata__.modified_class",
}


def test_the_page_has_the_table_of_now():
    assert replaced.PAGE.read_text() == replaced.page(), "run scripts/replaced.py"


@pytest.mark.parametrize("line", ADDED.values(), ids=ADDED)
def test_a_place_without_a_row_is_told(tmp_path, line):
    text = "from nemo_rl.algorithms import grpo\nfrom nemo_rl.environments import REGISTRY\n"
    (tmp_path / "module.py").write_text(f"{text}def new(logger):\n    {line}\n")
    with pytest.raises(ValueError, match=r"module\.new: .* has no row"):
        replaced.table(tmp_path)


def test_a_row_without_a_place_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"patches\.in_place: nothing is replaced there"):
        replaced.table(tmp_path)

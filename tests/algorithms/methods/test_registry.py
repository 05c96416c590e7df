"""The table of methods: a record each, whose file is imported when it is asked for."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from nemo_algos.algorithms import methods
from nemo_algos.algorithms.methods import FAMILIES, METHODS

FOLDER = Path(methods.__file__).parent


def test_every_file_is_listed_once():
    files = {path for path in FOLDER.rglob("*.py") if path.name != "__init__.py"}
    assert {Path(import_module(module).__file__) for module in METHODS.modules.values()} == files
    listed = [name for names in FAMILIES.values() for name in names]
    assert listed == list(METHODS) and len(listed) == len({*listed})


def test_a_name_that_is_none_is_refused():
    assert "vars" not in METHODS and METHODS.get("vars") is None
    with pytest.raises(KeyError, match="vars"):
        METHODS["vars"]


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("list(METHODS), 'rloo' in METHODS, len(METHODS), METHODS.keys()", set()),
        ("METHODS['rloo']", {"zoo.advantages"}),
        ("METHODS['luspo']", {"zoo.sequence", "gspo"}),  # whose ratio it has
        ("import nemo_algos; nemo_algos.build('etr')", {"etr"}),
    ],
)
def test_only_the_methods_asked_for_are_imported(code, files):
    script = f"import sys\nfrom {methods.__name__} import METHODS\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    prefix = f"{methods.__name__}."
    found = {m.removeprefix(prefix) for m in done.stdout.split() if m.startswith(prefix)}
    assert found - {"zoo"} == files

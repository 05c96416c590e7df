"""The table of methods: a record each, whose file is imported when it is asked for."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from nemo_algos.algorithms import methods
from nemo_algos.algorithms.methods import FAMILIES, METHODS
from nemo_algos.algorithms.record import ClipParams

FOLDER = Path(methods.__file__).parent


def test_every_file_is_listed_once():
    files = {path for path in FOLDER.rglob("*.py") if path.name != "__init__.py"}
    assert {Path(import_module(module).__file__) for module in METHODS.modules.values()} == files
    listed = [name for names in FAMILIES.values() for name in names]
    assert listed == list(METHODS) and len(listed) == len({*listed})


@pytest.mark.parametrize("name", METHODS)
def test_the_record_is_of_that_name_and_made_in_that_file(name):
    source = Path(import_module(METHODS.modules[name]).__file__).read_text()
    assert METHODS[name].name == name and METHODS.get(name) is METHODS[name]
    assert (
        len(re.findall(rf'^{name.upper()} = Method\(\s*name="{name}"', source, re.MULTILINE)) == 1
    )


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


@pytest.mark.parametrize("module", sorted({m for m in METHODS.modules.values() if ".zoo." in m}))
def test_every_parameter_says_what_it_is(module):
    """Those that are the method's own: a text below the field."""
    for kind in ast.parse(Path(import_module(module).__file__).read_text()).body:
        if isinstance(kind, ast.ClassDef):
            for field, below in pairwise([*kind.body, None]):
                if (
                    isinstance(field, ast.AnnAssign)
                    and field.target.id not in ClipParams.model_fields
                ):
                    assert isinstance(below, ast.Expr), f"{module}: {field.target.id}"
                    assert below.value.value.endswith(".")

"""docs/environment.md has every environment variable that the package reads, and no other."""

import ast
import re

from doc_commands import ROOT

from nemo_algos.lab.evals.schema import EndpointModel
from nemo_algos.preflight.check.data.output_dirs import LOGINS
from nemo_algos.preflight.slurm.batch import CACHES

PAGE = ROOT / "docs" / "environment.md"
PACKAGE = ROOT / "nemo_algos"
KEY = EndpointModel.model_fields["api_key_env"].default
NAMED_ELSEWHERE = {  # a read whose name is not written there: file, expression -> the names
    ("engines/execution/remote.py", "URL"): {"NEMO_ALGOS_SANDBOX_URL"},
    ("lab/evals/endpoint.py", "variable"): {KEY},
    ("lab/evals/schema.py", "name"): {KEY},
    ("preflight/check/data/output_dirs.py", "variable"): {key for key, _ in LOGINS.values()},
    ("preflight/check/data/output_dirs.py", "f'{name.upper()}_MODE'"): {
        f"{name.upper()}_MODE" for name in LOGINS
    },
    ("preflight/slurm/batch.py", "name"): {*CACHES},
    ("preflight/slurm/prepare.py", "name"): {"SBATCH_*"},
}


def reads(text):
    """The expressions of the names that a source text reads from the environment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            yield node.slice
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
            yield node.args[0]
        if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            yield node.left


def names_of(file, expression):
    if isinstance(expression, ast.Constant):
        return {expression.value}
    return NAMED_ELSEWHERE[file, ast.unparse(expression)]


def test_the_page_names_each_variable_that_is_read():
    read = set()
    for path in PACKAGE.rglob("*.py"):
        for expression in reads(path.read_text()):
            read |= names_of(str(path.relative_to(PACKAGE)), expression)
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == read


def test_a_read_is_seen_in_each_form():
    text = "os.environ['A']; os.environ.get('B', 'x'); os.getenv('C'); 'D' in os.environ"
    assert [expression.value for expression in reads(text)] == ["A", "B", "C", "D"]

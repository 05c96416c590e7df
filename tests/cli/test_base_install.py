"""`pip install nemo-algos` alone: what works, and which extra the other commands name."""

import json
import math
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from says import Says

from nemo_algos.extras import EXTRAS

# every other module is not there for PathFinder; said in the same words as where none is installed
BLOCKED = """
import sys
from importlib.machinery import PathFinder
class Base(PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        return None if name.partition(".")[0] in BLOCKED else PathFinder.find_spec(name, *rest)
sys.meta_path[sys.meta_path.index(PathFinder)] = Base
"""
# several commands in one process: what each ends with and says
CLI = """
import contextlib, io, json
from nemo_algos.cli import app
def said(words):
    out, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
        try:
            status = app(words)
        except SystemExit as end:
            status = end.code
    return status or 0, out.getvalue(), wrong.getvalue()
print(json.dumps([said(words) for words in {commands!r}]))
"""
LIBRARY = """
import torch, nemo_algos
old = torch.full((2, 3), -1.0)
rollouts = nemo_algos.Rollouts(
    group=[0, 0], rewards=[1.0, 0.0], mask=torch.ones(2, 3, dtype=bool), old_logprobs=old
)
new = old + torch.tensor([[0.1], [0.0]])
loss, metrics = nemo_algos.batch_loss("etr", new.requires_grad_(), rollouts)
print(f"{loss.item():.6f}")
"""


def distributions(name, extra="", seen=()):
    """A distribution and what it requires, by normal names."""
    found = {name.lower().replace("_", "-").replace(".", "-")} - {*seen}
    try:
        needed = [Requirement(line) for line in requires(name) or ()] if found else []
    except PackageNotFoundError:  # of another system
        return found
    for one in needed:
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            found |= distributions(one.name, next(iter(one.extras), ""), {*seen, *found})
    return found


BASE = distributions("nemo-algos")
GONE = {
    module
    for module, names in packages_distributions().items()
    if not {name.lower().replace("_", "-").replace(".", "-") for name in names} & BASE
}


def run(code, cwd):
    code = f"BLOCKED = {GONE!r}\n{BLOCKED}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_is_blocked():
    """Of the extras' modules all that torch does not bring."""
    assert {"torch", "pydantic", "typer", "rich", "yaml"} & GONE == set()
    assert {*EXTRAS} - GONE <= {"jinja2"} and len(GONE) > 20


WORKING = [
    (["check", "etr.yaml", "--json"], "[]"),
    (["check", "nemo_rl.yaml"], "errors: 0"),
    (["plan", "nemo_rl.yaml"], "GB"),
    (["slurm", "recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml", "--help"], "sbatch"),
    (["methods", "etr"], "macro"),
    (["configs"], "etr.yaml"),
]
NEEDING = [
    (["train", "etr.yaml"], "engine", "transformers"),
    (["export", "etr.yaml", "folder"], "engine", "transformers"),
    (["eval", "eval/countdown.yaml"], "lab", "scipy"),
    (["report", "folder"], "lab", "matplotlib"),
    (["mismatch", "folder"], "lab", "scipy"),
]


OWN = ["policy.model_name=some/model", "data.train.data_path=rows.jsonl"]
VERIFIER = ["check", "math.yaml", *OWN]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What one process prints of the commands, and then of the library; it leaves no file."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "rows.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    several = [*(words for words, _ in WORKING), *(words for words, *_ in NEEDING), VERIFIER]
    said, loss = run(CLI.format(commands=several) + LIBRARY, folder).splitlines()
    assert [path.name for path in folder.iterdir()] == ["rows.jsonl"]
    ended = zip(several, json.loads(said), strict=True)
    return {" ".join(words): end for words, end in ended}, float(loss)


@pytest.fixture
def ended(printed):
    """By command: its status, what it says, and what it says of mistakes."""
    return printed[0]


def test_the_library_gives_a_loss(printed):
    assert printed[1] == pytest.approx(-(0.5**0.5) * math.expm1(0.1) / 2, abs=1e-6)


def test_what_works(ended):
    for words, says in WORKING:
        status, said, wrong = ended[" ".join(words)]
        assert status == 0 and says in said, (words, wrong)


def test_the_others_name_the_extra(ended):
    for words, extra, module in NEEDING:
        status, _, wrong = ended[" ".join(words)]
        wanted = Says(f"{module} pip install 'nemo-algos[{extra}]' uv --extra {extra}")
        assert status == 2 and wrong == wanted, words
        assert len(wrong.splitlines()) == 1


def test_a_verifier_that_is_not_installed_is_a_finding(ended):
    status, said, _ = ended[" ".join(VERIFIER)]
    assert status == 1 and "data.verifier" in said and "pip install 'nemo-algos[engine]'" in said

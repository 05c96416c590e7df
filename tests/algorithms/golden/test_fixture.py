"""The exported folder: the same bytes each time, small, one for verify too; others are refused."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from says import Says
from typer.testing import CliRunner

from nemo_algos.algorithms import golden as conformance
from nemo_algos.algorithms.golden import conform, fixture, verify
from nemo_algos.algorithms.golden.traps import traps
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.cli import app

README = (Path(conformance.__file__).parent / "README.md").read_text()
OURS = "nemo_algos.algorithms.golden.verify:compute"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance") / "cases"
    assert CliRunner().invoke(app, ["conformance", "export", str(folder)]).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def made(folder):
    return fixture.read(folder)


def conformed(*words):
    """(status, stdout, stderr) of `nemo-algos conformance run`."""
    done = CliRunner().invoke(app, ["conformance", "run", *words], terminal_width=80)
    assert not isinstance(done.exception, Exception), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_it_has_every_method_in_every_trap(made):
    got = [(case["method"], case["trap"]) for case in made["cases"]]
    assert got == [(method, trap) for method in METHODS for trap in traps()]
    named = set(re.findall(r"^\| `(\w+)` \| ", README.split("## The traps")[1], re.MULTILINE))
    assert named == {*traps()}


def test_it_is_small(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "cases.json", "cases.schema.json", "conform.py"]
    assert len((folder / "cases.json").read_bytes()) < 60_000 * len(METHODS)
    assert len((folder / "conform.py").read_text().splitlines()) <= 60


def test_its_bytes_are_the_same_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(fixture, "METHODS", {k: METHODS[k] for k in ("etr", "apmpo")})
    for name in ("once", "again"):
        fixture.write(tmp_path / name)
    for path in (tmp_path / "once").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    text = (tmp_path / "once" / "cases.json").read_text()  # no order that a hash decides:
    assert text.replace("\n", "") == json.dumps(json.loads(text), sort_keys=True)


def test_every_case_says_something(made):
    for case in made["cases"]:
        assert np.abs(case["expected"]["grad"]).max() > 1e-5, case["name"]
    losses = {c["method"]: c["expected"]["loss"] for c in made["cases"] if c["trap"] == "holes"}
    assert len({round(loss, 8) for loss in losses.values()}) > 0.8 * len(METHODS)


def test_bounds_bite_on_both_sides(made):
    bounded = {c["method"] for c in made["cases"] if "low" in c["signals"]}
    assert {"etr", "grpo", "gspo", "gmpo", "cispo"} <= bounded
    for method in bounded:
        shares = [c["expected"] for c in made["cases"] if c["method"] == method]
        for side in ("clip/positive_above", "clip/negative_below"):
            found = [share[side] for share in shares if side in share]  # A of pass@k is positive
            assert found or method == "pass_at_k", (method, side)
            assert max(found, default=1) > 0, (method, side)


def test_verify_reads_it(folder):
    golden = verify.read(folder / "cases.json")
    for case in (c for c in golden["cases"] if c["trap"] in ("holes", "nan_off_mask")):
        errors = verify.errors_of(case)
        assert {"loss", "grad", "advantages"} <= {e.quantity for e in errors}
        assert max(e.error for e in errors) < 1e-10


def alone(folder, name, monkeypatch, capsys):
    """(status, lines) of the runner beside the cases."""
    monkeypatch.setattr(sys, "argv", ["conform.py", name])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "conform.py"), run_name="__main__")
    return ended.value.code, capsys.readouterr().out.splitlines()


def test_the_runner_alone_with_our_own_function(folder, monkeypatch, capsys):
    assert "nemo_algos" not in (folder / "conform.py").read_text()
    status, lines = alone(folder, OURS, monkeypatch, capsys)
    assert status == 0 and len(lines) == len(METHODS) * len(traps())
    assert {line.split(" ", 1)[1] for line in lines} == {"pass "}


def test_the_readmes_function(folder, tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n# my_module.py\n(.*?)```", README, re.DOTALL)
    (command,) = re.findall(r"```bash\n(.*)\n```", README)
    assert command == "python conform.py my_module:function"
    (tmp_path / "my_module.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    status, lines = alone(folder, "my_module:function", monkeypatch, capsys)
    assert status == 0 and [x for x in lines if x.endswith(" pass ")] == [
        f"grpo-{trap} pass " for trap in traps()
    ]
    rest = {line.split(" ", 1)[1] for line in lines if not line.startswith("grpo-")}
    assert rest == {"refused grpo is all that X has"}


SHARES = """
from nemo_algos.algorithms.golden.verify import compute
def wrong(method, params, inputs, signals, counts):
    if method == "etr":
        raise NotImplementedError("has no ETR")
    if method == "gpg":
        raise TypeError("what is GPG?")
    got = compute(method, params, inputs, signals, counts)
    return got | {"loss": got["loss"] + (0.5 if "rewards" not in inputs else 0.0)}
"""


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    (tmp_path / "wrong_loss.py").write_text(SHARES)
    monkeypatch.chdir(tmp_path)
    yield "wrong_loss:wrong"
    del sys.modules["wrong_loss"]


def test_what_departs_is_said_and_by_how_much(folder, wrong):
    status, said, _ = conformed(wrong, "--cases", str(folder), "--trap", "micro_batches")
    assert status == 1
    row = next(line for line in said.splitlines() if "micro_batches" in line)
    assert re.match(r"│ micro_batches +│ refused │ loss \de\+00 ", row)
    assert "etr: has no ETR" in said and "gpg: TypeError: what is GPG?" in said


def test_the_path_is_as_before(folder, wrong):
    """Whatever the function's module does to it."""
    before = [*sys.path]
    Path("wrong_loss.py").write_text(f"import sys\nsys.path.append('elsewhere')\n{SHARES}")
    assert conformed(wrong, "--cases", str(folder), "--trap", "plain")[0] == 1
    assert sys.path == before and "wrong_loss" in sys.modules


def test_as_json_and_the_status(folder, wrong):
    cases = ("--cases", str(folder), "--json")
    status, said, _ = conformed(wrong, *cases, "--method", "grpo", "--trap", "micro_batches")
    ((row,), detail) = json.loads(said), {"loss": pytest.approx(2.0), "grad": pytest.approx(0)}
    assert status == 1
    assert row == {
        "method": "grpo",
        "trap": "micro_batches",
        "verdict": "departs",
        "detail": detail,
    }
    assert conformed(wrong, *cases, "--method", "grpo", "--trap", "plain")[0] == 0
    assert conformed(wrong, *cases, "--method", "etr")[0] == 1  # it passes none


def test_a_nan_is_no_agreement():
    mask = np.ones((1, 2), dtype=bool)
    assert conform.error([[0.0, float("nan")]], [[0.0, 1.0]], mask) == 1e308
    assert conform.error([[0.0, float("nan")]], [[0.0, 1.0]], np.array([[True, False]])) == 0
    assert conform.error([2.0], [[1.0, 4.0]], mask) == 1
    assert conform.error([0.0], [None], mask) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["json"], "json module:function"),
        (["nowhere:loss"], "'nowhere:loss' ModuleNotFoundError"),
        (["json:lods"], "'json:lods' AttributeError"),
        ([OURS, "--method", "grop"], "method 'grop' grpo"),
        ([OURS, "--trap", "hole"], "trap 'hole' holes"),
        ([OURS, "--cases", "nowhere"], "nowhere/cases.json"),
    ],
)
def test_what_cannot_be_run(words, said, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = [*sys.path]
    status, shown, error = conformed(*words, *(() if "--cases" in words else ("--cases", ".")))
    assert sys.path == before
    assert (status in (1, 2), shown) == (True, "") and error == Says(said)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("version", 2, "version: 1 2"),
        ("cases", [], "cases: 1"),
        ("cases.0.pieces", [[0, 1], [1]], "grpo-plain: pieces 16"),
        ("cases.0.inputs", "nothing", "grpo-plain: 'nothing'"),
        ("cases.0.expected.grad", [[0.0], [1.0, 2.0]], "grpo-plain.grad [B] [B][S]"),
        ("cases.0.signals.advantages", [1.0], "grpo-plain.advantages [B] [B][S]"),
        ("cases.0.counts.tokens", "many", "cases.0.counts.tokens: "),
        ("inputs.plain.rewards", [1.0], "inputs.plain.rewards [B] [B][S]"),
        ("inputs.plain.mask", [[0, 7]], "inputs.plain.mask.0.1: 0 1 7"),
        ("inputs.plain.logprobs", "x", "inputs.plain.logprobs"),
    ],
)
def test_a_file_that_is_none(path, value, said, folder, tmp_path):
    whole = json.loads((folder / "cases.json").read_text())
    whole["cases"] = [c for c in whole["cases"] if c["name"] == "grpo-plain"]
    *above, last = path.split(".")
    at = whole
    for name in above:
        at = at[int(name) if name.isdigit() else name]
    at[last] = value
    (tmp_path / "cases.json").write_text(json.dumps(whole))
    status, shown, error = conformed(OURS, "--cases", str(tmp_path))
    assert (status, shown) == (2, "") and error == Says(f"{tmp_path}/cases.json {said}")
    (tmp_path / "cases.json").write_text("[" * 10**5)
    error = conformed(OURS, "--cases", str(tmp_path))[2]
    assert error == Says(f"{tmp_path}/cases.json JSON")

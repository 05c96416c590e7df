"""`method:` blocks and the table of methods: combinations, refusals, methods of third parties."""

import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
import torch
from batches import PLAIN, close, make, run
from says import Says

from nemo_algos.algorithms import methods
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import FAMILIES, METHODS
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.config import SHIPPED, shipped_method
from nemo_algos.findings import ConfigError

EVERY_INPUT = {"ref_logprobs", "entropy", "gen_logprobs"}
ERPO_ETR = {"advantages": "erpo", "bounds": "etr"}


def refusals(block):
    with pytest.raises(ConfigError) as error:
        build(block)
    return [str(problem) for problem in error.value.findings]


# ---- what a block builds


@pytest.mark.parametrize(
    ("block", "name", "mean", "needs"),
    [
        ("etr", "etr", "sequence", set()),
        ({"name": "grpo", "aggregation": "token"}, "grpo", "token", set()),
        ({"name": "grpo", "bounds": "grpo"}, "grpo", "sequence", set()),
        ("erpo", "erpo", "token", {"ref_logprobs", "entropy"}),
        ("apmpo", "apmpo", "sequence", {"unit_rewards"}),
        (ERPO_ETR, "erpo+etr", "token", {"ref_logprobs", "entropy"}),
        ({"name": "grpo", **ERPO_ETR}, "erpo+grpo+etr", "sequence", {"ref_logprobs", "entropy"}),
        ({"name": "grpo", "bounds": "apmpo"}, "grpo+apmpo", "sequence", {"unit_rewards"}),
        ({"name": "apmpo", "bounds": "etr"}, "apmpo+etr", "sequence", {"unit_rewards"}),
        ({"name": "grpo", "advantages": "apmpo"}, "apmpo+grpo", "sequence", set()),
        ({"name": "cispo", "bounds": "etr"}, "cispo+etr", "token", set()),
        ({"name": "grpo", "advantages": "maxrl"}, "maxrl+grpo", "sequence", {"unit_rewards"}),
        (
            {"name": "sapo", "advantages": "opd"},
            "opd+sapo",
            "sequence",
            {"ref_logprobs", "teacher"},
        ),
        ({"name": "opsm", "advantages": "erpo"}, "erpo+opsm", "sequence", EVERY_INPUT),
        ({"name": "grpo", "bounds": "dppo_tv"}, "grpo+dppo_tv", "sequence", set()),
        ({"advantages": "rloo", "bounds": "etr"}, "rloo+etr", "token", set()),
    ],
)
def test_name_mean_and_needs(block, name, mean, needs):
    algorithm = build(block)
    assert (algorithm.name, algorithm.mean, algorithm.needs) == (name, mean, needs)


def test_parameters_beside_the_components_are_the_base_methods():
    """Of the named method, else of the one that gives the advantages."""
    assert build({**ERPO_ETR, "buckets": 3}).base.params.buckets == 3
    inner = {"advantages": {"name": "erpo", "buckets": 3}, "bounds": "etr"}
    assert build(inner) == build({**ERPO_ETR, "buckets": 3})
    assert build({**inner, "buckets": 5}).base.params.buckets == 5  # the outer one wins
    named = build({"name": "grpo", "aggregation": "token", **ERPO_ETR})
    assert (named.mean, named.advantages.params.buckets) == ("token", 10)


def test_building_leaves_the_block_as_it_was():
    block = {"advantages": {"name": "erpo"}, "bounds": {"name": "etr", "macro": 0.2}}
    build(block)
    assert block == {"advantages": {"name": "erpo"}, "bounds": {"name": "etr", "macro": 0.2}}


# ---- what is refused

VALID = " ".join(METHODS)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"name": "apmpo", "advantages": "erpo"}, "method: apmpo advantage erpo"),
        ({"name": "gspo", "advantages": "erpo"}, "method: gspo ratio advantage erpo"),
        ({"name": "gmpo", "advantages": "erpo"}, "method: gmpo ratio advantage erpo"),
        ({"name": "quatro", "advantages": "erpo"}, "method: quatro ratio advantage erpo"),
        ({"name": "gpg", "bounds": "etr"}, "method: gpg ratio etr"),
        ({"name": "grpo", "bounds": "gpg"}, "method: gpg bounds"),
        ({"name": "grpo", "bounds": "quatro"}, "method: quatro bounds"),
        ({"name": "quatro", "bounds": "etr"}, "method: quatro bounds etr"),
        ({"name": "vespo", "advantages": "opd"}, "method: vespo advantage opd"),
        (
            {"name": "gepo", "advantages": "high_entropy"},
            "method: gepo ratio advantage high_entropy",
        ),
        ({"name": "gpg", "advantages": "luspo"}, "method: luspo gpg length"),
        (
            {"name": "grpo", "advantages": "dr_grpo", "aggregation": "token"},
            "method: dr_grpo grpo length",
        ),
        ({"name": "dppo_kl", "bounds": "etr"}, "method: dppo_kl ratio etr"),
        ({"name": "grpo", "bounds": "sapo"}, "method: sapo bounds"),
        ({"name": "sapo", "dual_clip": 3}, "method: dual_clip sapo ratio"),
        ("ert", "method.name: 'ert' etr"),
        ({"name": "zzz"}, f"method.name: 'zzz' {VALID}"),
        ({"name": 3}, f"method.name: 3 {VALID}"),
        ({}, f"method.name: missing {VALID}"),
        ({"bounds": "etr"}, f"method.name: missing {VALID}"),
        (None, "method: name None"),
        ({"name": "grpo", "bounds": 5}, "method.bounds: name 5"),
        ({"name": "etr", "mirco": 0.1}, "method.mirco: micro"),
        ({"name": "grpo", "clip_low": -0.1}, "method.clip_low: 0 -0.1"),
        ({"name": "grpo", "clip_low": 1.1}, "method.clip_low: 1 1.1"),
        ({"name": "quatro", "delta": 1e-7}, "method.delta: 0.000001 1e-07"),
        ({"name": "grpo", "max_log_ratio": 21}, "method.max_log_ratio: 20 21"),
        (
            {"name": "grpo", "bounds": {"name": "etr", "max_log_ratio": 5}},
            "method.bounds.max_log_ratio: bounds etr",
        ),
        (
            {"name": "grpo", "advantages": {"name": "erpo", "dual_clip": 3}},
            "method.advantages.dual_clip: advantages erpo",
        ),
        ({"name": "etr", "macro": float("nan")}, "method.macro: finite nan"),
        ({"name": "etr", "micro": "a"}, "method.micro: number 'a'"),
        ({"name": "etr", "micro": 0.2}, "method: micro 0.2 clip_base"),
        ({"name": "etr", "macro": 0.7}, "method: clip_base micro macro 1"),
        ({"name": "apmpo", "clip_max": 0.1}, "method: clip_max 0.1 clip_min 0.2"),
        ({"name": "apmpo", "clip_max": 1, "symmetric": True}, "method: symmetric clip_max 1.0"),
        ({"name": "apmpo", "gamma": 1, "exponent": "linear"}, "method: gamma 1.0 linear"),
        ({"name": "grpo", "dual_clip": 1}, "method.dual_clip: greater 1"),
    ],
    ids=str,
)
def test_refused_with_the_reason(block, message):
    (problem,) = refusals(block)
    assert problem == Says(message)


@pytest.mark.parametrize("name", METHODS)
def test_dual_clip_where_it_has_a_meaning(name):
    if name in PLAIN:
        assert build({"name": name, "dual_clip": 3}).base.params.dual_clip == 3
    else:
        (reason,) = refusals({"name": name, "dual_clip": 3})
        assert reason == Says(f"method: dual_clip {name}")


def test_all_findings_of_all_components_at_once():
    block = {
        "name": "grpo",
        "clip_hihg": 1,
        "advantages": {"name": "erpo", "bukets": 3, "process_weight": -1},
        "bounds": {"name": "ert", "micro": 0.3},
    }
    assert refusals(block) == [
        Says("method.clip_hihg: clip_high"),
        Says("method.advantages.process_weight: 0 -1"),
        Says("method.advantages.bukets: buckets"),
        Says("method.bounds.name: 'ert' etr"),
    ]
    assert len(refusals({"name": "gpg", "bounds": "quatro", "dual_clip": 2})) == 3


# ---- third parties

HALF = """
    from nemo_algos.algorithms.record import (ClipParams)
    from nemo_algos.algorithms.kernel import (Method)

    class HalfParams(ClipParams):
        share: float = 0.5

    def reweight(log_ratio, mask, signals, params):
        A = signals.advantages
        return A.where(A > 0, params.share * A)

    MINE = Method(name="half", paper="-", params=HalfParams, reweight=reweight)
"""
IMPORTS = "from nemo_algos import *\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of a package of its own and returns its name for `method:`."""
    package = f"of_{tmp_path.name}"  # each test's own, for sys.modules keeps it
    monkeypatch.syspath_prepend(tmp_path)

    def write(source):
        (tmp_path / package).mkdir()
        (tmp_path / package / "losses.py").write_text(textwrap.dedent(source))
        return f"{package}.losses:MINE"

    return write


def test_a_third_partys_method_trains(module):
    """Ratios 1.5 and 0.9, A = 1/2 and -1/2: -(min(1.5, 1.2) 1/2 - 0.9 * 0.4 * 1/2) / 2 = -0.21."""
    algorithm = build({"name": module(HALF), "share": 0.4, "advantage_std": "none"})
    mask = torch.tensor([[True, False], [False, True]])
    rollouts = Rollouts(torch.tensor([5, 5]), torch.tensor([1, 0]), mask, -torch.ones(2, 2))
    ratios = torch.tensor([[1.5, 7.0], [7.0, 0.9]], dtype=torch.float64)
    logprobs = (ratios.log() - 1).requires_grad_()
    signals = algorithm.signals(rollouts, {})
    loss = policy_loss(algorithm, logprobs, rollouts, signals, Counts.of(mask)).value
    loss.backward()
    assert (algorithm.name, algorithm.mean) == ("half", "sequence")
    close(loss.detach(), -0.21)
    close(logprobs.grad, ratios.new_tensor([[0, 0], [0, 0.09]]))


def test_a_third_partys_method_combines(module):
    name = module(HALF)
    combined = build({"name": name, "bounds": "etr"})
    assert combined.name == "half+etr"
    got = run({"name": name, "share": 1, "bounds": "etr"}, make(), LossConfig())
    close(got.grad, run("etr", make(), LossConfig()).grad)
    (problem,) = refusals({"name": name, "dual_clip": 3})
    assert problem == Says("method: dual_clip half grpo etr erpo gspo")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(:", "SyntaxError: invalid syntax (losses.py, line 1)"),
        ("import nope_nope", "ModuleNotFoundError: No module named 'nope_nope'"),
        ("raise RuntimeError('two\\n  lines')", "RuntimeError: two lines"),
        ("assert False", "AssertionError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_does_not_import_is_one_sentence(module, source, reason):
    name = module(source)
    (problem,) = refusals({"name": name})
    assert problem == Says(f"method.name: {name!r} {reason}") and "\n" not in problem


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("MINE = 3", "int Method"),
        ("from nemo_algos.algorithms.methods.etr import ETR as MINE", "etr"),
        (IMPORTS + "MINE = Method('m', '-', params=dict)", "params"),
        (IMPORTS + "MINE = Method('m', '-', params=Params())", "params"),
        (IMPORTS + "MINE = Method('m', '-', params=Params)", "clip_low"),
        (IMPORTS + "MINE = Method('m', '-', ClipParams, form='logprobs')", "'logprobs' logprob"),
    ],
)
def test_a_record_that_is_wrong_is_one_sentence(module, source, reason):
    name = module(source)
    (problem,) = refusals({"name": "grpo", "bounds": name})
    assert problem == Says(f"method.bounds.name: {name!r} {reason}")
    assert "ValueError" not in problem


@pytest.mark.parametrize("name", ["nope_nope:MINE", ":MINE", "math:", "math:MINE", "math:a:b"])
def test_a_name_that_leads_nowhere_is_one_sentence(name):
    (problem,) = refusals(name)
    assert problem == Says(f"method.name: {name!r}")
    assert "\n" not in problem


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


PRESETS = [path.stem for path in SHIPPED.glob("*.yaml") if path.stem not in METHODS]


@pytest.mark.parametrize("name", [name for name in PRESETS if shipped_method(name)])
def test_the_name_of_a_shipped_config_says_which_method_it_is(name):
    block = shipped_method(name)
    (said,) = refusals(name)
    values = " ".join(str(value) for value in block.values())
    assert said == Says(f"method.name: {name}.yaml {values}") and "did you mean" not in said


# methods of other papers
OTHERS = ["gigpo", "mcpo", "r2vpo", "lpo", "tpo", "mipu", "arpo"]


@pytest.mark.parametrize("name", OTHERS)
def test_another_method_is_no_misspelt_one(name):
    assert "did you mean" not in refusals(name)[0]


TYPOS = {
    "grpoo": "grpo",
    "GRPO": "grpo",
    "dr-grpo": "dr_grpo",
    "quatr": "quatro",
    "DrGRPO": "dr_grpo",
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_misspelt_method_is_guessed(name):
    assert refusals(name)[0] == Says(f"method.name: {name} did you mean {TYPOS[name]}")

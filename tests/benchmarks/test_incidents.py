"""benchmarks/incidents: some rows of each kind are as stated, and what a row may hold."""

# pyright: reportMissingImports=false

import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from nemo_algos.findings import ConfigError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/incidents"))
sys.path.append(str(Path(__file__).parents[1] / "real/peers"))

from conformance import run as conform
from incident import ROWS, read, read_all
from losses import TOLERANCE, answer, cases
from measured import Measured

FOLDER = ROWS.parent
SPEC = importlib.util.spec_from_file_location("incidents_run", FOLDER / "run.py")
assert SPEC and SPEC.loader
program = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(program)

SOME = [
    *("areal-1705", "autocontext-1067", "deepeval-2967", "enigmata-8", "ms-swift-10106"),
    *("multipl-e-40", "nemo-rl-1242", "nemo-rl-2702", "nemo-rl-3781", "nemo-rl-4066"),
    *("open-instruct-1530", "rlinf-463", "toolrl-52", "trl-2059", "trl-3867"),
    *("unsloth-2292", "verl-3674", "verl-7274"),
]
CUT = "log_ratio = torch.where(b.mask, b.logprobs - b.old, 0.0).clamp(-20, 20)"
CLIP = """
    clipped = ratio.clamp(1 - b.params.clip_low, 1 + b.params.clip_high)
    each = torch.minimum(ratio * b.A, clipped * b.A) * b.mask
    each = each - (penalty(b, log_ratio.exp()) if hasattr(b.params, "kl_coef") else 0)
    return -((each.sum(1) / lengths).sum() / b.counts.sequences)
"""
HEAD = """
import torch

KL_TYPES = ("k1", "k2", "k3", "unbiased")


def penalty(b, ratio):
    d = torch.where(b.mask, b.ref - b.logprobs, 0.0)
    k3 = d.exp() - 1 - d
    kl = {"k1": -d, "k2": d**2 / 2, "k3": k3, "unbiased": ratio * k3}[b.params.kl_type]
    return b.params.kl_coef * kl * b.mask


def loss(b):
    lengths = b.mask.sum(1).clamp(min=1)
"""
RIGHT = {  # what the wrong losses of the rows depart from
    "grpo": f"    {CUT}\n    ratio = log_ratio.exp(){CLIP}",
    "gspo": f"    {CUT}\n    ratio = (log_ratio.sum(1) / lengths).exp()[:, None]{CLIP}",
    "gpg": """
    logprobs = torch.where(b.mask, b.logprobs, 0.0)
    return -((logprobs * b.A * b.mask).sum() / b.counts.tokens)
""",
}


@pytest.mark.parametrize("name", SOME)
def test_a_row_is_as_stated(name, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    row = read(ROWS / name)
    found = program.measure(row)
    assert found.state == row.state, found.said


@pytest.mark.parametrize("method", RIGHT)
def test_a_right_loss_meets_no_trap(method, tmp_path):
    """Else a wrong one would be found by what is right in it."""
    (tmp_path / "loss.py").write_text(HEAD + RIGHT[method])
    rows = conform(answer(tmp_path / "loss.py"), cases(method), TOLERANCE)
    assert {row["verdict"] for row in rows} == {"pass"}
    assert len(rows) == (12 if method == "gpg" else 12 + 4 * 4)


WRONG_KL = [  # what is written, what stands in its place, the KL types that it departs in
    ("b.ref", "b.gen", {"k1", "k2", "k3", "unbiased"}),
    ("b.params.kl_coef *", "-b.params.kl_coef *", {"k1", "k2", "k3", "unbiased"}),
    ("b.ref - b.logprobs", "b.logprobs - b.ref", {"k1", "k3", "unbiased"}),
    ("ratio * k3", "ratio.detach() * k3", {"unbiased"}),
]


@pytest.mark.parametrize("method", ["grpo", "gspo"])
@pytest.mark.parametrize(("right", "wrong", "types"), WRONG_KL)
def test_a_wrong_kl_penalty_departs_wherever_there_is_one(method, right, wrong, types, tmp_path):
    (tmp_path / "loss.py").write_text(HEAD.replace(right, wrong) + RIGHT[method])
    rows = conform(answer(tmp_path / "loss.py"), cases(method), TOLERANCE)
    departs = {(row["trap"], row["kl"]) for row in rows if row["verdict"] == "departs"}
    traps = ("plain", "holes", "unequal_lengths", "data_parallel")
    assert departs == {(trap, kind) for trap in traps for kind in types}


def test_every_row_states_what_was_measured_and_the_page_has_the_score():
    rows = read_all()
    assert len(rows) > 120 and all(row.state for row in rows)
    assert {row.expected.method for row in rows if row.who == "conformance"} <= RIGHT.keys()
    stated = program.table([(row, Measured(row.state, "")) for row in rows], {})
    page = (FOLDER / "README.md").read_text()
    for line in stated.splitlines():
        assert line.rpartition("|")[0].rstrip("| ") in page, "run.py --write writes it"


WRITTEN = {
    "report": "a/b#1",
    "fault": "It fails.",
    "who": "check",
    "config": "nemo_rl.yaml",
    "expected": {"keys": ["grpo.seed"], "level": "error"},
}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"overides": []}, "x.overides"),
        ({"expected": {"key": "grpo.seed", "level": "error"}}, "x.expected.key"),
        ({"expected": {"keys": ["a"], "level": "loud"}}, "x.expected.level"),
        ({"who": "chek"}, "x.who"),
        ({"report": "a bug"}, "x.report"),
        ({"folder": "/etc"}, "x.folder"),
        ({"state": "missed"}, "x"),
        ({"state": "whole", "why": "It is."}, "x"),
        ({"state": "good"}, "x.state"),
    ],
)
def test_what_a_row_may_not_hold(change, path, tmp_path):
    (tmp_path / "x").mkdir()
    file = tmp_path / "x" / "incident.yaml"
    file.write_text(yaml.safe_dump(WRITTEN))
    assert read(tmp_path / "x").state is None
    file.write_text(yaml.safe_dump(WRITTEN | change))
    with pytest.raises(ConfigError) as refused:
        read(tmp_path / "x")
    assert path in {finding.path for finding in refused.value.findings}

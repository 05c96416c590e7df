"""benchmarks/fp8_study.py: the emulation of e4m3 blocks. benchmarks/plan_memory.py: its tables."""

import csv
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trainers
from batches import every_method, make

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.engines.local.schema import Shape
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.preflight.plan.report import measured_errors

FOLDER = Path(__file__).parents[2] / "benchmarks"
study = SimpleNamespace(**runpy.run_path(str(FOLDER / "fp8_study.py")))
RAW = torch.tensor([[448.0, 17.0, 19.0, 0.3, -5.6]])
ROUNDED = torch.tensor([[448.0, 16.0, 20.0, 0.3125, -5.5]])  # 3 bits of mantissa, ties to even


def gradients(model):
    """Logits of fixed responses and the gradient of their sum of squares."""
    tokens = torch.arange(24).view(4, 6)
    logits = model.response_logits(tokens[:2, :3], torch.tensor([0, 0, 1, 1]), tokens)
    return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 2.0**30])
def test_a_block_is_rounded_relative_to_its_largest_value(scale):
    torch.testing.assert_close(study.e4m3(5, scale * RAW, False), scale * ROUNDED, rtol=0, atol=0)


@pytest.mark.parametrize("amax", [0.0, 1e-42, 1e-30, 3e38])
def test_no_block_overflows_to_nan(amax):
    x = torch.tensor([[amax, -amax, 0.0]])
    rounded = study.e4m3(2, x, True)
    torch.testing.assert_close(rounded, x, rtol=1e-6, atol=1e-32)


@pytest.mark.parametrize(
    ("square", "lost"), [(False, ["0100", "0000", "0000"]), (True, ["0100", "1100", "0000"])]
)
def test_an_outlier_underflows_its_own_block_only(square, lost):
    x = torch.full((3, 4), 1.1)
    x[0, 0] = 1e7
    rounded = study.e4m3(2, x, square)
    assert ["".join(str(int(v == 0)) for v in row) for row in rounded] == lost
    torch.testing.assert_close(rounded[rounded != 0], x[rounded != 0], rtol=1e-6, atol=0)


def test_without_rounding_the_patched_model_is_the_given_one():
    torch.manual_seed(0)
    model = Tiny(Shape()).double()
    seen = set()

    def none(x, square):
        seen.add(tuple(x.shape) if square else None)
        return x

    for ours, plain in zip(gradients(study.rounded(model, none)), gradients(model), strict=True):
        torch.testing.assert_close(ours, plain)  # to 1e-7, for it is float64
    shapes = {(192, 64), (64, 64), (384, 64), (64, 192)}  # not the head, [110, 64]
    assert seen == {None, *shapes, *((k, n) for n, k in shapes)}


def test_rounding_changes_logits_and_every_gradient_but_not_the_given_model():
    torch.manual_seed(0)
    model = Tiny(Shape())
    before = gradients(model)
    low = gradients(study.rounded(model, study.ROUNDINGS["e4m3 32"]))
    assert all(not a.equal(b) for a, b in zip(low, before, strict=True))
    assert all(a.equal(b) for a, b in zip(gradients(model), before, strict=True))


@torch.no_grad()
def test_responses_come_from_the_given_sampler_not_from_the_trainer():
    trainer = trainers.trainer()
    low = study.rounded(trainer.policy.model, study.ROUNDINGS["e4m3 128"])
    drawn, _ = study.draw(trainer, low, 0)
    gaps = []
    for model in (low, trainer.policy.model):
        gap = drawn.gen_logprobs - study.logprobs(model, drawn)[0]
        gaps.append(float(gap[drawn.mask].abs().mean()))
    assert gaps[1] > 0.01 > 5 * gaps[0]


@every_method
def test_clip_decisions_add_up_to_the_losses_clip_fraction(name):
    a, (rollouts, logprobs) = build(name), make(large=False)
    counts = Counts.of(rollouts.mask)
    stats = policy_loss(a, logprobs, rollouts, a.signals(rollouts, {}), counts).stats
    clips = study.clipped(a, study.Judged(rollouts.mask, rollouts, logprobs, []))
    assert float(clips.mean()) == pytest.approx(stats.summary()["clip/fraction"])


TINY = {"num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "micro-batch-size": 4}
TINY |= {"global-batch-size": 32, "seq-length": 1024, "max-position-embeddings": 1024}
TINY |= {"bf16": True, "use-distributed-optimizer": True, "attention-backend": "unfused"}


def row(case, platform="dgx_h100", **more):
    """The golden values of gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files."""
    return {
        "case": case,
        "environment": "dev",
        "platform": platform,
        "world": {"nodes": 1, "gpus_per_node": 8, "source": "recipe"},
        "test_type": "regular",
        "mem_max_allocated": 4702.4e6,
        "mem_allocated": 581.5e6,
        "iteration_time": 0.083,
        "args": TINY,
        "env": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    } | more


def test_the_tables(tmp_path, capsys):
    assumed = {"nodes": 1, "gpus_per_node": 1, "source": "assumed"}
    rows = [
        row("known"),
        row("inferred", world=assumed, test_type="release"),
        row("guessed too few", world=assumed, args=TINY | {"tensor-model-parallel-size": 2}),
        row("elastic", args=TINY | {"flextron": True}),
        row("nobody knows", args=TINY | {"new-idea": 1}),
        row("nonsense", args=TINY | {"num-attention-heads": "eight"}),
        row("another GPU", platform="dgx_b300"),
        row("not measured", mem_max_allocated=None),
    ]
    file, out = tmp_path / "rows.json", tmp_path / "out.csv"
    file.write_text(json.dumps(rows))
    errors = tmp_path / "expected.json"
    runpy.run_path(str(FOLDER / "plan_memory.py"))["main"](file, out, errors)
    text = capsys.readouterr().out
    assert "b300: 1 rows of 1 cases" in text and "h100: 6 rows of 6 cases" in text
    assert "refused: 4 of 7 cases (57%)" in text
    for reason in ("flextron: elastic widths", "not known here: new-idea", "platform dgx_b300"):
        assert f"  1  {reason}\n" in text
    found = json.loads(errors.read_text())
    assert {kind: found[kind]["rows"] for kind in found} == {"peak": 3, "time": 1}
    assert [list(part) for part in found.values()] == [
        list(part) for part in measured_errors().values()
    ]
    with out.open() as lines:
        known, inferred, few = [r for r in csv.DictReader(lines) if not r["refused"]]
    assert float(known["predicted"]) == pytest.approx(4702.4e6, rel=0.01)
    assert (inferred["gpus"], inferred["inferred"]) == ("8", "True")
    assert int(few["gpus"]) >= 2 and few["inferred"] == "True"
    assert "predicted not to fit its GPU: 0 of 3 rows" in text
    assert "peak, GPUs known" in text and "the ten worst peaks" in text

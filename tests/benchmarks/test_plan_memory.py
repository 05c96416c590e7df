"""benchmarks/plan_memory.py on rows of Megatron-LM's functional tests, typed from their values."""

import csv
import json
import runpy
from pathlib import Path

import pytest

from nemo_algos.preflight.plan.report import measured_errors

FILE = Path(__file__).parents[2] / "benchmarks" / "plan_memory.py"
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
    runpy.run_path(str(FILE))["main"](file, out, errors)
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

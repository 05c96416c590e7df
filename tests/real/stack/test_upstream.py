"""The programs of upstream.md still fail as the page says: what is mended there leaves the page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).with_name("upstream.md")
FENCE = re.compile(r"```python\n# upstream/(\w+)\.py\n(.*?)```", re.DOTALL)
PROGRAMS = dict(FENCE.findall(PAGE.read_text()))


def run(name: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Under two ranks, if it has ranks."""
    (tmp_path / f"{name}.py").write_text(PROGRAMS[name])
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ranks = ranks if "init_process_group" in PROGRAMS[name] else []
    command = [sys.executable, *ranks, str(tmp_path / f"{name}.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_vocabulary(tmp_path):
    lines = [line.split() for line in run("tp_vocabulary", tmp_path).stdout.splitlines()]
    errors = {int(vocabulary): float(error) for vocabulary, error in lines}
    assert errors[62] < 1e-5 and errors[61] == pytest.approx(2.5133, abs=1e-3)


@pytest.mark.parametrize(
    "name, error",
    [
        ("fused_without_sequence_parallel", "The size of tensor a (0) must match"),
        ("sampling_importance_ratio", "AssertionError: tensor(4.)"),
        ("sequence_weights", "AssertionError: 0."),
        ("engine_port", "address already in use"),
    ],
)
def test_it_ends_in_an_error(name, error, tmp_path):
    ended = run(name, tmp_path)
    assert ended.returncode and error in ended.stderr


def test_every_program_is_run():
    assert set(PROGRAMS) == {
        "tp_vocabulary",
        "fused_without_sequence_parallel",
        "sampling_importance_ratio",
        "sequence_weights",
        "engine_port",
    }

"""Puts one version of NeMo-RL on the path ($NEMO_RL_REF: v0.7.0 or main), and the shims first.

Shims replace things as they are imported: they are installed before anything else here, but where
there is a GPU.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
PLACES = (HERE, HERE.parent / "nemo", TESTS / "preflight" / "check", TESTS)
sys.path[:0] = map(str, PLACES)

import checkout  # noqa: E402
import whole_run  # noqa: E402
from rehearsal import machine  # noqa: E402

REF = os.environ.setdefault("NEMO_RL_REF", "main")
_clone = checkout.home()
if _clone is None:
    raise pytest.UsageError("no NeMo-RL checkout: set NEMO_RL_HOME (make test-stack skips)")
_folder = tempfile.TemporaryDirectory(prefix="nrl")  # short: Ray's sockets are below it
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.update(machine.variables(checkout.worktree(_clone, REF), Path(_folder.name)))
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)

if machine.replacements():
    import nemo_cpu

    if not nemo_cpu.installed():  # this interpreter did not start with the shims on its path
        nemo_cpu.install()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: one case of each part, run by CI")
    config.addinivalue_line("markers", "slow: minutes; the whole suite runs it")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module's SMOKE_CASES are single cases of its matrices, which no parameter's mark can be."""
    for item in items:
        if item.name in getattr(item.module, "SMOKE_CASES", ()):
            item.add_marker(pytest.mark.smoke)


@pytest.fixture(scope="session")
def ref() -> str:
    return REF


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Of this run, which the environment's variables name."""
    yield Path(_folder.name)
    _folder.cleanup()


@pytest.fixture(scope="session")
def main_alone(ref: str) -> None:
    """For what v0.7.0 does not have."""
    if ref == "v0.7.0":
        pytest.skip("v0.7.0 has no single controller")


@pytest.fixture(scope="module")
def place(folder: Path, ref: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder of the runs, and their variables."""
    clone = checkout.home()
    assert clone is not None
    with whole_run.running(folder, checkout.worktree(clone, ref), gpus=2) as env:
        yield folder, env


IMPORTED = (
    "nemo_algos.engines.nemo.dtensor_worker",
    "nemo_algos.engines.nemo.megatron_worker",
    "nemo_algos.engines.nemo.loss",
    "nemo_algos.engines.nemo.policy",
    "nemo_rl.models.policy.lm_policy",
    "nemo_rl.algorithms.grpo",
)


@pytest.fixture(scope="session")
def imported() -> None:
    """What every forked case begins with; this process runs no backward."""
    for name in IMPORTED:
        importlib.import_module(name)

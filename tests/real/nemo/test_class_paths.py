"""class_paths.patch of tests/real/stack, for NVIDIA-NeMo/RL#3512: losses, estimators by path."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nemo_rl
import pytest
from hydra.utils import get_object
from launched import launched, numbers
from rounding import rounding

from nemo_algos.engines.nemo import patches, versions
from nemo_algos.engines.nemo.derived_config import ESTIMATOR

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATCH = ROOT / "tests" / "real" / "stack" / "class_paths.patch"
PULL = os.environ["NEMO_RL_REF"] == "3512"
of_the_pull = pytest.mark.skipif(not PULL, reason="the patch is for #3512's tree")
PROGRAM = "import stubs, sys; stubs.install(); import launched; launched.main(sys.argv[1])"
# the tests that the patch adds
NEW = "class_path or advertised or estimator_metrics or estimator_columns"
ADDED = 13
HOOKED = "import stubs, sys; stubs.install(); import hooked; hooked.{}(*sys.argv[1:])"
TESTS = """import stubs, sys
stubs.install()
import pytest, ray, no_ray
# before: their own actors stay Ray's, those of the tests do not
import nemo_rl.algorithms.grpo, nemo_rl.algorithms.single_controller
patch = pytest.MonkeyPatch()
no_ray.without_ray(patch)
patch.setattr(ray, "remote", no_ray.remote)
patch.setattr(ray, "kill", lambda actor, **_: None)
sys.exit(pytest.main(sys.argv[1:]))"""


def applied(folder: Path) -> Path:
    """A copy of this NeMo-RL with the patch. CalledProcessError where the patch is not for it."""
    here = Path(nemo_rl.__file__).parents[1]
    for part in ("nemo_rl", "examples", "docs/guides", "tests/unit"):
        shutil.copytree(here / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", str(PATCH)], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return applied(tmp_path_factory.mktemp("patched"))


def output(tree: Path, program: str, *args: Any) -> str:
    """What a program prints with the NeMo-RL of this tree."""
    tests = ROOT / "tests"
    places = (tree, ROOT, HERE, tests, tests / "preflight" / "check")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-c", program, *map(str, args)]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_the_class_path_alone_makes_nothing() -> None:
    with pytest.raises(LookupError, match="nemo_algos"):
        get_object(ESTIMATOR)({}, {})


@pytest.mark.skipif(PULL, reason="there it does")
def test_the_patch_applies_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        applied(tmp_path)


@of_the_pull
@pytest.mark.usefixtures("in_process")
def test_with_the_patch_our_run_is_the_same(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = json.loads(output(tree, PROGRAM, tmp_path / "theirs"))
    ours = numbers(launched(tmp_path / "ours", monkeypatch))
    assert {"loss 2", "probs_ratio_min 2", "etr/radius_positive 2", "mismatch/mean 2"} <= set(ours)
    assert ours == theirs["numbers"]
    assert theirs["replaced"] == [name for name in patches.CREATORS if versions.present(name)]


# method: which of its metrics the estimator's own are
METHODS = {"etr": "etr/radius_positive 2", "quatro": "quatro/", "apmpo": "apmpo/", "grpo": ""}


@of_the_pull
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("method", METHODS)
def test_with_columns_a_method_needs_none_of_our_replacements(
    method: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By NeMo-RL's own factory, policy and data plane: `hooked`; the weights are the same."""
    ours = numbers(launched(tmp_path / "ours", monkeypatch, method))
    batches = json.loads(output(tree, HOOKED.format("in_batches"), tmp_path / "theirs", method))
    assert batches["used"] == []
    assert batches["numbers"]["weights"] == ours["weights"]
    shared = {name for name in batches["numbers"] if name in ours}
    assert {"loss 1", "loss 2", "grad_norm 2", "reward 2"} <= shared
    assert any(name.startswith(METHODS[method]) for name in shared)
    for name in {name for name in shared if name.split("/")[0] in ("loss", method)}:
        assert batches["numbers"][name] == pytest.approx(ours[name]), name


@of_the_pull
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("method", ["etr", "quatro"])
def test_columns_go_through_the_data_plane(
    method: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = json.loads(output(tree, HOOKED.format("in_queue"), tmp_path / "theirs", method))
    assert queue["used"] == []
    ours = numbers(launched(tmp_path / "ours", monkeypatch, method))
    near = rounding(2 * 2)
    assert queue["numbers"]["weights"] == pytest.approx(ours["weights"], abs=near)


@of_the_pull
def test_its_own_tests_pass(tree: Path) -> None:
    """Of a stranger's estimator and loss by class path, PPO's and the single controller's too."""
    files = sorted(set(re.findall(r"^\+\+\+ b/(tests/.*/test_\w+\.py)$", PATCH.read_text(), re.M)))
    said = output(tree, TESTS, "-q", "--noconftest", "-o", "addopts=", "-k", NEW, *files)
    assert said.startswith(f"{ADDED} passed")

"""docs/upstream/class_paths.patch: NeMo-RL makes our estimator itself, and trains the same."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nemo_rl
import pytest
from hydra.utils import get_object
from launched import launched, numbers, replaced

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import trainers, versions
from nemo_algos.engines.nemo.decided import ESTIMATOR
from nemo_algos.engines.nemo.estimator import Estimator

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAM = "import stubs, sys; stubs.install(); import launched; launched.main(sys.argv[1])"
PATCH = ROOT / "docs" / "upstream" / "class_paths.patch"


def patched(folder: Path) -> Path:
    """A copy of this NeMo-RL's package, with the patch."""
    here = Path(nemo_rl.__file__).parents[1]
    shutil.copytree(here / "nemo_rl", folder / "nemo_rl", ignore=lambda *_: ["__pycache__"])
    (folder / "examples").symlink_to(here / "examples")
    command = ["git", "apply", "--include=nemo_rl/*", str(PATCH)]
    subprocess.run(command, cwd=folder, check=True)
    return folder


def trained(tree: Path, folder: Path) -> dict[str, Any]:
    """What launched.main prints with the NeMo-RL of this tree."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, ROOT, HERE)))}
    command = [sys.executable, "-c", PROGRAM, folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_the_patch_every_factory_is_replaced() -> None:
    assert not trainers.CLASS_PATHS
    assert replaced() == [name for name in trainers.CREATORS if versions.present(name)]


def test_the_class_path_is_the_running_estimators_and_nobodys_else() -> None:
    estimator = Estimator(build("etr"))
    with trainers.in_place(estimator):
        assert get_object(ESTIMATOR)({}, {}) is estimator
    with pytest.raises(LookupError, match="nemo_algos"):
        get_object(ESTIMATOR)({}, {})


def test_the_patch_is_small() -> None:
    """What docs/upstream.md says of it."""
    command = ["git", "apply", "--numstat", str(PATCH)]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    changed = {"nemo_rl": 0, "tests": 0}
    for added, removed, path in map(str.split, table.splitlines()):
        changed[path.partition("/")[0]] += int(added) + int(removed)
    assert changed == {"nemo_rl": 150, "tests": 85}


@pytest.mark.usefixtures("in_process")
def test_with_the_patch_nothing_is_replaced_and_training_is_the_same(
    ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ref != "main":
        with pytest.raises(subprocess.CalledProcessError):
            patched(tmp_path)
        return
    theirs = trained(patched(tmp_path), tmp_path / "theirs")
    assert theirs["replaced"] == []
    ours = numbers(launched(tmp_path / "ours", monkeypatch))
    assert {"loss 2", "probs_ratio_min 2", "etr/radius_positive 2", "mismatch/mean 2"} <= set(ours)
    assert ours == theirs["numbers"]

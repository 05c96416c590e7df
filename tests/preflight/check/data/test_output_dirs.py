"""Folders that cannot be written, and trackers without a login."""

import errno
import io
import tempfile

import pytest

from nemo_algos.preflight.check.data.output_dirs import output_dirs
from nemo_algos.preflight.check.data.verdict import Verdict, add, read


class Run(dict):
    def __missing__(self, key):
        return None


def judged(tmp_path, **more):
    keys = {
        "checkpointing.enabled": True,
        "checkpointing.checkpoint_dir": str(tmp_path / "a" / "b"),
    }
    return {v.key: v.outcome for v in output_dirs(Run(keys | more))}


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path):
    assert judged(tmp_path) == {"checkpointing.checkpoint_dir": "passed"}
    assert not (tmp_path / "a").exists()


def test_a_folder_below_a_file_is_not(tmp_path):
    (tmp_path / "a").write_text("")
    assert judged(tmp_path) == {"checkpointing.checkpoint_dir": "failed"}


def test_a_full_disk_is_none_that_can_be_written(tmp_path, monkeypatch):
    """It still takes an empty file."""
    (tmp_path / "a").mkdir()

    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    assert judged(tmp_path) == {"checkpointing.checkpoint_dir": "failed"}


@pytest.mark.parametrize(
    ("variables", "outcome"),
    [({}, "failed"), ({"WANDB_API_KEY": "x"}, "passed"), ({"WANDB_MODE": "offline"}, "passed")],
)
def test_wandb_needs_a_login(variables, outcome, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = judged(tmp_path, **{"logger.wandb_enabled": True})
    assert found["logger.wandb_enabled"] == outcome


def test_verdicts_are_read_as_written(tmp_path):
    one = Verdict("data", "failed", "row 7", "data.train", 1.5, {"rows": [7]})
    add(tmp_path, one)
    add(tmp_path, Verdict("save", "passed", ""))
    assert read(tmp_path)[0] == one and len(read(tmp_path)) == 2

"""A machine on which no judgement depends."""

import json
import os
import shutil
from collections import namedtuple

import pytest

Usage = namedtuple("Usage", "free")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine with a large disk, a W&B mode, a hub, and nothing in the environment.

    And models whose conversions for Megatron (of `changed`, one with overrides) are a day younger
    or older.
    """
    for name in ("HF_HUB_OFFLINE", "HF_HOME", "NRL_IGNORE_TP_ACCURACY_CHECK", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NRL_MEGATRON_CHECKPOINT_DIR", raising=False)
    for name, days in {"fresh": 1, "stale": -1, "changed__hfovr_0a": -1}.items():
        weights = tmp_path / name.partition("__")[0] / "model.safetensors"
        copy = tmp_path / ".cache/huggingface/nemo_rl" / f"model_{name}" / "iter_0000000"
        for folder in (weights.parent, copy):
            folder.mkdir(parents=True)
        weights.touch()
        os.utime(copy, (weights.stat().st_mtime + days * 86400,) * 2)
    rows = [{"input": "1 + 1", "output": "2"}, {"input": "1 + 2", "answer": "3"}]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "many.jsonl").write_text(100 * (json.dumps(rows[0]) + "\n"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1e16))
    monkeypatch.chdir(tmp_path)

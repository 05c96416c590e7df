"""A machine on which no judgement depends."""

import json
import os
import shutil
from collections import namedtuple

import pytest

Usage = namedtuple("Usage", "free")
KINDS = {"writer": "LlamaForCausalLM", "judge": "LlamaForSequenceClassification"}


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder with rows, and with models whose conversions for Megatron are younger or older.

    By a day; of `changed`, the older one is of a model with overrides.
    """
    folder = tmp_path_factory.mktemp("home")
    for name, days in {"fresh": 1, "stale": -1, "changed__hfovr_0a": -1}.items():
        weights = folder / name.partition("__")[0] / "model.safetensors"
        copy = folder / ".cache/huggingface/nemo_rl" / f"model_{name}" / "iter_0000000"
        for made in (weights.parent, copy):
            made.mkdir(parents=True)
        weights.touch()
        os.utime(copy, (weights.stat().st_mtime + days * 86400,) * 2)
    rows = [{"input": "1 + 1", "output": "2"}, {"input": "1 + 2", "answer": "3"}]
    (folder / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "many.jsonl").write_text(100 * (json.dumps(rows[0]) + "\n"))
    solved = {"input": "6 * 7?", "output": "We multiply.\n#### 42"}
    (folder / "solved.jsonl").write_text(100 * (json.dumps(solved) + "\n"))
    step = folder / "earlier" / "step_5"
    (step / "policy/weights/model").mkdir(parents=True)
    (step / "training_info.json").write_text("{}")
    saved = {"policy": {"model_name": "other/Model-1B", "dtensor_cfg": {"_v2": True}}}
    (step / "config.yaml").write_text(json.dumps(saved))
    for name, words in {"one": "abc", "same": "abc", "other": "cab"}.items():
        vocabulary = {"vocab": {word: number for number, word in enumerate(words)}}
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(json.dumps({"model": vocabulary}))
    for name, kind in KINDS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"architectures": [kind]}))
    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch, home):
    """A machine with a large disk, a W&B mode, a hub, and nothing in the environment."""
    for name in ("HF_HUB_OFFLINE", "HF_HOME", "NRL_IGNORE_TP_ACCURACY_CHECK", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NRL_MEGATRON_CHECKPOINT_DIR", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1e16))
    monkeypatch.chdir(home)

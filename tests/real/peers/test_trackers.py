"""A run in W&B, MLflow and trackio: their own libraries, without a network or a server."""

import io
import json
import os
import sqlite3
import struct
from pathlib import Path

import pytest
from rich.console import Console

from nemo_algos import config
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.run import run
from nemo_algos.preflight.check.local.judge import judge

SMALL = [
    "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=2",
    "grpo.max_val_samples=2",
    "grpo.val_samples_per_prompt=4",
    "policy.train_global_batch_size=4",
]
NAMED = {
    "wandb": ["logger.wandb={project: mine, name: first}"],
    "trackio": ["logger.trackio={project: mine, name: first}"],
    "mlflow": ["logger.mlflow={experiment_name: mine, run_name: first}"],
}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder, name, steps):
    given = [*SMALL, *NAMED[name], f"logger.{name}_enabled=true", f"grpo.max_num_steps={steps}"]
    plain = config.load(config.SHIPPED / "grpo.yaml", [*given, f"logger.log_dir={folder.parent}"])
    checked, algorithm, _ = judge(plain, folder)
    run(checked, algorithm, folder, Console(file=io.StringIO()))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["step"]: row["entropy/exact"] for row in rows if "entropy/exact" in row}


def mlflow_values(offline):
    import mlflow

    (found,) = mlflow.search_runs(experiment_names=["mine"], output_format="list")
    assert found.info.run_name == "first" and found.info.status == "FINISHED"
    assert "validation/pass_at_1" in found.data.metrics
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "entropy/exact")
    return {value.step: value.value for value in history}


def trackio_values(offline):
    (file,) = Path(os.environ["TRACKIO_DIR"]).glob("mine*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    ((name, *rest),) = {tuple(row[0].split(" ")) for row in rows}
    assert name == "first" and rest[0].startswith("exp_001-20")
    values = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert any("validation/pass@1" in metrics for _, metrics in values)
    return {step: m["entropy/exact"] for step, m in values if "entropy/exact" in m}


BLOCK, FULL, FIRST = 32768, 1, 2


def wandb_records(data):
    """Of a .wandb file, a log as LevelDB writes it: 7 bytes ahead, and before each piece."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # padding
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        piece, place = data[place + 7 : place + 7 + length], place + 7 + length
        whole = piece if kind in (FULL, FIRST) else whole + piece
        if kind not in (FIRST, FIRST + 1):
            yield whole


def wandb_values(offline):
    from wandb.proto.wandb_internal_pb2 import Record

    values, ids = {}, set()
    for file in sorted((offline / "wandb").glob("offline-run-*/*.wandb")):
        for data in wandb_records(file.read_bytes()):
            record = Record.FromString(data)
            ids |= {(record.run.run_id, record.run.project, record.run.display_name)}
            step, items = record.history.step.num, record.history.item
            item = {"".join(i.nested_key) or i.key: i.value_json for i in items}
            if "entropy/exact" in item:
                values[step] = float(item["entropy/exact"])
    ((id, *named),) = ids - {("", "", "")}  # of both parts
    assert id.startswith("exp_001-20") and named == ["mine", "first"]
    return values


VALUES = {"wandb": wandb_values, "trackio": trackio_values, "mlflow": mlflow_values}


@pytest.mark.parametrize("name", VALUES)
def test_the_numbers_of_a_run_and_of_its_resume_are_one_runs(offline, name):
    folder = offline / "exp_001"
    train(folder, name, steps=2)
    entropies = train(folder, name, steps=4)
    assert sorted(entropies) == [1, 2, 3, 4]
    assert VALUES[name](offline) == pytest.approx(entropies)

"""What verl itself writes of a step: texts, which are refused with the remedy, and a batch."""

import pytest
import torch
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from nemo_algos.engines.mismatch.dump import read


def test_verls_rollout_data_are_texts_alone(tmp_path):
    texts = (["a"], ["b"], ["c"], [1.0], {})
    RayPPOTrainer._write_generations(*texts, str(tmp_path), 3)
    with pytest.raises(ValueError, match=r"rollout_data_dir .*torch"):
        read(tmp_path / "3.jsonl")


def test_the_remedys_line_writes_what_is_read(tmp_path, monkeypatch):
    """Of verl's DataProto; its own save_to_disk is a pickle, and not loaded."""
    columns = {
        "prompts": [[0, 1]],
        "responses": [[2, 3]],
        "attention_mask": [[0, 1, 1, 1]],
        "response_mask": [[1, 1]],
        "rollout_log_probs": [[-1.0, -2.0]],
        "old_log_probs": [[-1.5, -2.0]],
    }
    batch = DataProto.from_dict({name: torch.tensor(rows) for name, rows in columns.items()})
    monkeypatch.chdir(tmp_path)
    torch.save({k: v for k, v in batch.batch.items() if hasattr(v, "shape")}, "step.pt")
    dump = read(tmp_path / "step.pt")
    assert dump.tokens.tolist() == [[0, 1, 2, 3]] and dump.prompt_length.tolist() == [1]
    assert dump.trainer_logprobs[dump.mask].tolist() == [-1.5, -2.0]
    assert dump.mask.tolist() == [[False, False, True, True]]
    batch.save_to_disk("whole.pt")
    with pytest.raises(ValueError, match="tensors"):
        read(tmp_path / "whole.pt")

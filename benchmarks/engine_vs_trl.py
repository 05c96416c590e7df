"""TRL's GRPOTrainer against the embedded engine, in turns of one run.

Both have the same model, prompts and batch shape.

    uv run --no-project --isolated --python 3.11 \
        --with-requirements tests/real/peers/requirements.txt \
        --with-editable '.[lab]' python benchmarks/engine_vs_trl.py --threads 1 --threads 2

The model is the countdown model after 60 GRPO steps of the engine, which TRL loads in Hugging
Face's format. Then both train it, 10 steps of one, 10 of the other, so that whatever else the
machine does hits both. TRL runs as fast as it can without vLLM (static cache, eager attention,
torch.compile and continuous batching were no faster): float32 and sdpa on CPU, fused AdamW, no
gradient checkpointing, logging, evaluation or saving, the engine's own verifier as reward.

Tokens are those of all responses, <eos> included; seconds are all of a step's. The engine computes
responses of a group that begin alike once and skips groups of zero advantage, with the same numbers
as result: part of what is measured.

With `--device cuda` the model has 51 million parameters and is taught, not trained, beforehand.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import timing
import torch
import typer
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar as hide_datasets_bar
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar as hide_transformers_bar
from trl import GRPOConfig, GRPOTrainer

from nemo_algos import config
from nemo_algos.engines.data import countdown
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.preflight.check.local.judge import parse

CONFIG = Path(__file__).parents[1] / "examples/configs/grpo.yaml"
PINNED = [  # whatever the shipped config says
    "method.aggregation=token",
    "grpo.num_prompts_per_step=32",
    "grpo.num_generations_per_prompt=16",
    "grpo.num_update_epochs=1",
    "policy.train_global_batch_size=128",
    "policy.train_micro_batch_size=128",
    "policy.generation.max_new_tokens=12",
    "policy.generation.temperature=1.0",
    "policy.optimizer.name=torch.optim.AdamW",
    "policy.optimizer.kwargs={lr: 2.0e-4, betas: [0.9, 0.99], weight_decay: 0.01, fused: true}",
    "policy.max_grad_norm=1.0",
    "policy.scheduler=[]",
    "loss_fn.reference_policy_kl_penalty=0",
]
ON_A_GPU = [
    "policy.device=cuda",
    "policy.shape={width: 512, layers: 16, heads: 8, hidden: 1408}",
    "policy.taught={steps: 200, device: cuda}",
    "policy.generation_batch_size=512",
    "policy.optimizer.kwargs.lr=1.0e-5",  # at 2e-4 such a model forgets what it was taught
    "grpo.val_samples_per_prompt=0",
]
RATE = {"cpu": 2e-4, "cuda": 1e-5}
BEFORE = {"cpu": 60, "cuda": 0}  # GRPO steps of the engine
PROMPTS, GROUP, MINIBATCH = 32, 16, 128
UPDATES = PROMPTS * GROUP // MINIBATCH  # per rollout batch
console = Console(highlight=False)


@dataclass
class Run:
    """One trainer's blocks: seconds, CPU seconds, response tokens; each batch's mean reward."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def start(self) -> None:
        """A block begins."""
        _wait()
        self.tokens.append(0.0)
        self.seconds.append(-time.perf_counter())
        self.cpu.append(-time.process_time())

    def stop(self) -> None:
        """The block ends."""
        _wait()
        self.seconds[-1] += time.perf_counter()
        self.cpu[-1] += time.process_time()

    def add(self, tokens: float, reward: float) -> None:
        """One rollout batch."""
        self.tokens[-1] += tokens
        self.rewards.append(reward)

    @property
    def speeds(self) -> list[float]:
        """Tokens per second, block by block."""
        return [t / s for t, s in zip(self.tokens, self.seconds, strict=True)]


def _wait() -> None:
    """Until the GPU has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def engine(seed: int, device: str) -> Trainer:
    """The embedded engine, after its warm start."""
    there = ON_A_GPU if device == "cuda" else []
    checked, algorithm = parse(config.load(CONFIG, [*PINNED, *there, f"grpo.seed={seed}"]))
    return build_trainer(checked, algorithm, console)


class Turns(TrainerCallback):
    """After every `updates` of TRL it is the other's turn."""

    def __init__(self, trl: Run, updates: int, other: Callable[[], None]) -> None:
        self.trl, self.updates, self.other = trl, updates, other

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        self.trl.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        if state.global_step % self.updates == 0:
            self.trl.stop()
            self.other()
            if state.global_step < state.max_steps:
                self.trl.start()


def trl_trainer(
    folder: str, problems: list[countdown.Puzzle], run: Run, turns: Turns, seed: int, device: str
) -> GRPOTrainer:
    """GRPOTrainer on the model in `folder`, 32 problems a batch in the order given."""

    def reward(
        completion_ids: list[list[int]], numbers: list[list[int]], target: list[int], **_: Any
    ) -> list[float]:
        rows = zip(completion_ids, numbers, target, strict=True)
        right = [
            countdown.solution(countdown.Puzzle(tuple(n), t), i) is not None for i, n, t in rows
        ]
        run.add(sum(map(len, completion_ids)), statistics.fmean(right))
        return [float(r) for r in right]

    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=reward,
        processing_class=tokenizer(),
        callbacks=[turns],
        train_dataset=Dataset.from_list(
            [
                {
                    "prompt": f"{p} :",
                    "numbers": list(p.numbers),
                    "target": p.target,
                }
                for p in problems
            ]
        ),
        args=GRPOConfig(
            output_dir=folder,
            max_steps=len(problems) // PROMPTS * UPDATES,
            num_generations=GROUP,
            per_device_train_batch_size=MINIBATCH,
            gradient_accumulation_steps=1,
            steps_per_generation=UPDATES,
            shuffle_dataset=False,
            max_completion_length=12,
            temperature=1.0,
            loss_type="dapo",  # the token mean
            epsilon=0.2,
            beta=0.0,
            learning_rate=RATE[device],
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            adam_beta1=0.9,
            adam_beta2=0.99,
            weight_decay=0.01,
            max_grad_norm=1.0,
            seed=seed,
            use_cpu=device == "cpu",
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
    return trainer


def tokenizer() -> PreTrainedTokenizerFast:
    """Countdown's vocabulary, one token a word."""
    words = Tokenizer(models.WordLevel(countdown.TOKEN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>")


def compare(
    model: Trainer, steps: int, block: int, seed: int, device: str = "cpu"
) -> tuple[Run, Run]:
    """The engine's run and TRL's: `steps` batches from `model`'s weights, `block` at a time."""
    ours = Run()
    trl = Run()
    trainer = engine(seed, device)
    trainer.policy.model.load_state_dict(model.policy.model.state_dict())
    problems = [p for step in range(steps) for p in trainer.task.examples(step, PROMPTS)]

    def turn() -> None:
        ours.start()
        for _ in range(block):
            metrics = trainer.step()
            ours.add(metrics["length/mean"] * PROMPTS * GROUP, metrics["reward/mean"])
        ours.stop()

    with tempfile.TemporaryDirectory() as folder:
        model.policy.save(folder)
        turns = Turns(trl, block * UPDATES, turn)
        trl_trainer(folder, problems, trl, turns, seed=seed, device=device).train()
    return ours, trl


def report(threads: int, load: float, ours: Run, trl: Run) -> None:
    """Tokens per second, their ratio, and the rewards."""
    columns = ("", "tokens/s", "by block", "s/step", "CPU s/step", "reward")
    table = Table(*columns, title=f"{threads} thread(s)")
    for name, run in (("engine", ours), ("TRL", trl)):
        table.add_row(
            name,
            f"{sum(run.tokens) / sum(run.seconds):,.0f}",
            f"{min(run.speeds):,.0f} to {max(run.speeds):,.0f}",
            f"{sum(run.seconds) / len(run.rewards):.3f}",
            f"{sum(run.cpu) / len(run.rewards):.3f}",
            f"{statistics.fmean(run.rewards):.3f}",
        )
    console.print(table)
    ratios = [a / b for a, b in zip(ours.speeds, trl.speeds, strict=True)]
    apart = [a - b for a, b in zip(ours.rewards, trl.rewards, strict=True)]
    console.print(
        f"engine / TRL  {statistics.median(ratios):.2f} (median of {len(ratios)} blocks, "
        f"{min(ratios):.2f} to {max(ratios):.2f}), per CPU second {_ratio(trl.cpu, ours.cpu):.2f}\n"
        f"rewards apart {statistics.fmean(apart):+.4f} +- {_standard_error(apart):.4f} "
        f"(standard error over {len(apart)} batches of the same prompts)\n"
        f"load average  {load:.2f} before, {os.getloadavg()[0]:.2f} after (1 minute)"
    )


def figures(ours: Run, trl: Run) -> dict[str, float]:
    """Tokens per second of whole steps, the blocks' ratios, and the difference of rewards."""
    ratios = [a / b for a, b in zip(ours.speeds, trl.speeds, strict=True)]
    apart = [a - b for a, b in zip(ours.rewards, trl.rewards, strict=True)]
    return {
        "engine, tokens/s": sum(ours.tokens) / sum(ours.seconds),
        "TRL, tokens/s": sum(trl.tokens) / sum(trl.seconds),
        "engine / TRL, median of blocks": statistics.median(ratios),
        "engine / TRL, least": min(ratios),
        "engine / TRL, most": max(ratios),
        "rewards apart": statistics.fmean(apart),
        "its standard error": _standard_error(apart),
    }


def _ratio(a: list[float], b: list[float]) -> float:
    return sum(a) / sum(b)


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def main(
    threads: Annotated[list[int] | None, typer.Option(help="once for each number")] = None,
    steps: Annotated[int, typer.Option(help="rollout batches of each")] = 60,
    block: Annotated[int, typer.Option(help="rollout batches a turn")] = 10,
    seed: int = 1,
    device: str = "cpu",
    json: Path | None = None,
) -> None:
    """Compare the two at each number of threads; a file gets the figures of the last."""
    hide_datasets_bar()
    hide_transformers_bar()
    names = ("torch", "transformers", "trl", "nemo-algos")
    console.print(platform.python_version(), *(f"{n} {version(n)}" for n in names), _cpu())
    model = engine(0, device)
    torch.set_num_threads(1)
    for _ in range(BEFORE[device]):
        model.step()
    for number in threads or [1, 2]:
        torch.set_num_threads(number)
        load = os.getloadavg()[0]
        ours, trl = compare(model, steps, block, seed, device)
        report(number, load, ours, trl)
        timing.save(json, figures(ours, trl))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    return f"{name or platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

"""Runs of TRL's GRPOTrainer and of ours on the countdown model, in this process or in several.

python -m torch.distributed.run --nproc_per_node 2 tests/real/peers/trl_runs.py MODEL CASES.json OUT
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "CI": "1", "TOKENIZERS_PARALLELISM": "false"}  # no pings

import pytest
import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoTokenizer, PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from nemo_algos import config
from nemo_algos.engines.adapters.trl import MethodTrainer
from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.build import policy_of
from nemo_algos.preflight.check.local.judge import parse

GROUP, RULES = 8, countdown.Rules(numbers=2)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    disable_progress_bar()
    yield
    torch.set_num_threads(threads)


def saved(folder, steps):
    """A countdown model of two numbers, taught so many steps, in Hugging Face's format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMO_ALGOS_CACHE", str(folder / "cache"))
        patch.setattr(tiny_policy, "WARM_STEPS", steps)
        checked, _ = parse(config.load(config.SHIPPED / "grpo.yaml", ["data.numbers=2"]))
        policy_of(checked.policy, RULES, Console(quiet=True)).save(str(folder))
    return folder


def reward(completion_ids, numbers, target, **_):
    """1 for a solved puzzle."""
    rows = zip(completion_ids, numbers, target, strict=True)
    solved = (countdown.solution(countdown.Puzzle(tuple(n), t), ids) for ids, n, t in rows)
    return [float(x is not None) for x in solved]


def even(completion_ids, **_):
    """The share of even tokens."""
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


def given(prompts, trainer):
    """Completions that depend on the step and the row among all processes' rows alone.

    Of unequal lengths; some without <eos>, some with tokens that are not the model's.
    """
    first = trainer.accelerator.process_index * len(prompts)
    words = trainer.processing_class(prompts)["input_ids"]
    out = {"prompt_ids": words, "completion_ids": [], "logprobs": [], "env_mask": []}
    for row in range(first, first + len(prompts)):
        rng = random.Random(f"{trainer.state.global_step} {row} {trainer.model.training}")
        ids = [rng.randrange(100) for _ in range(rng.randint(1, 9 if row < 7 else 5))]
        ids += [countdown.EOS] if rng.random() < 0.7 else []
        out["completion_ids"].append(ids)
        out["logprobs"].append([-rng.uniform(3, 6) for _ in ids])
        out["env_mask"].append([1] + [int(rng.random() < 0.8) for _ in ids[1:]])
    return out


def settings(folder: str | Path, **changed: Any) -> GRPOConfig:
    """A CPU's; 64 responses to 8 prompts a batch, logged at each step."""
    plain = {
        "output_dir": f"{folder}/out",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 12,
        "gradient_accumulation_steps": 1,
        "num_generations": GROUP,
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "shuffle_dataset": False,
    }
    return GRPOConfig(**plain | changed)


def trainer(folder: str | Path, args: GRPOConfig, method: Any = None, **named: Any) -> GRPOTrainer:
    """Ours with a method, else TRL's; puzzles in a fixed order."""
    rng = random.Random(1)
    asked = [puzzles.sample(rng, RULES)[0] for _ in range(400)]
    rows = [{"prompt": f"{p} :", "numbers": [*p.numbers], "target": p.target} for p in asked]
    named = {"reward_funcs": reward, "train_dataset": Dataset.from_list(rows)} | named
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind, own = (MethodTrainer, {"method": method}) if method else (GRPOTrainer, {})
    made = kind(model=str(folder), args=args, processing_class=tokenizer, **own, **named)
    made.remove_callback(PrinterCallback)
    return made


def trajectory(folder: str | Path, case: dict[str, Any]) -> dict[str, Any]:
    """The logs and the last weights of a run on given completions, four to a prompt."""
    plain = {
        "max_steps": 4,
        "num_generations": 4,
        "num_generations_eval": 4,
        "optim": "sgd",  # Adam makes a step of any gradient, and so of its rounding
        "learning_rate": 0.01,
        "max_grad_norm": 0.0,
        "mask_truncated_completions": True,
    }
    args = settings(folder, **plain | case["args"])
    named = {"loss_fn": case["loss_fn"], "rollout_func": given, "reward_funcs": even}
    if args.eval_strategy != "no":
        data = [{"prompt": f"{i} 2 > 5 :", "numbers": [i, 2], "target": 5} for i in range(3)]
        named["eval_dataset"] = Dataset.from_list(data)
    run = trainer(folder, args, case["method"], **named)
    run.train()
    timed = ("step_time", "runtime", "per_second", "epoch")
    logs = [
        {k: v for k, v in row.items() if not k.endswith(timed)} for row in run.state.log_history
    ]
    return {"logs": logs[:-1], "weights": run.model.state_dict()}


def main(model: str, cases: str, out: str) -> None:
    """Every case's trajectory, by name, from the first process."""
    torch.set_num_threads(1)
    disable_progress_bar()
    runs = {k: trajectory(model, v) for k, v in json.loads(Path(cases).read_text()).items()}
    if int(os.environ.get("RANK", "0")) == 0:
        torch.save(runs, out)


if __name__ == "__main__":
    main(*sys.argv[1:])

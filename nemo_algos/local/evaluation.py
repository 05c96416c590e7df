"""Held-out evaluation: unbiased pass@k and the number of distinct right solutions."""

from __future__ import annotations

from typing import Any

import torch

from nemo_algos.core.draws import pass_at_k
from nemo_algos.local.experience import Policy
from nemo_algos.local.tasks import Task

KS = (1, 4, 16, 64)
CHUNK = 32  # prompts generated at a time


def evaluate(policy: Policy, task: Task, prompts: int, samples: int, seed: int) -> dict[str, float]:
    """pass@k for k in 1, 4, 16, 64 (up to `samples`) and distinct right solutions per prompt.

    Draws from a generator of its own, so that training is the same with and without evaluation.
    Empty where the task holds out nothing.
    """
    problems = task.held_out(prompts)
    if not problems or not samples:
        return {}
    generator = torch.Generator(next(policy.model.parameters()).device).manual_seed(seed)
    found: list[Any] = []
    for i in range(0, len(problems), CHUNK):
        chunk = problems[i : i + CHUNK]
        experience = policy.generate([task.prompt(p) for p in chunk], samples, generator)
        found += task.solutions(chunk, experience)
    per_problem = [found[i : i + samples] for i in range(0, len(found), samples)]
    correct = [sum(s is not None for s in group) for group in per_problem]
    distinct = [len({s for s in group if s is not None}) for group in per_problem]
    ks = [k for k in KS if k <= samples]
    means = pass_at_k(correct, samples, ks).mean(0).tolist()
    out = {f"pass@{k}": mean for k, mean in zip(ks, means, strict=True)}
    return {**out, "distinct": sum(distinct) / len(distinct)}

"""Held-out evaluation: unbiased pass@k and the number of distinct right solutions."""

from typing import Any, NamedTuple

import torch

from nemo_algos.core.draws import pass_at_k
from nemo_algos.local.experience import Experience, Policy
from nemo_algos.local.tasks import Response, Task
from nemo_algos.local.turns import generate
from nemo_algos.rewards import Verdict
from nemo_algos.rewards.weighted import refuse_unjudged

KS = (1, 4, 16, 64)
CHUNK = 32  # prompts generated at a time
SEED = 1234  # of the evaluations before and after training


class Sampled(NamedTuple):
    """`samples` responses to each held-out example: its solution (None: wrong), and its tokens."""

    solutions: list[list[Any]]
    lengths: list[list[int]]


def attempts(
    policy: Policy, task: Task, examples: list[Any], samples: int, generator: torch.Generator
) -> tuple[Experience, list[Any], list[Response], list[Verdict]]:
    """`samples` responses to each example; [B]: the example, the text and the verdict of each.

    Raises Unjudged where none could be judged.
    """
    experience = generate(policy, task, examples, samples, generator)
    lengths = zip(experience.responses(), experience.mask.sum(1).tolist(), strict=True)
    texts = [Response(policy.text(tokens), length) for tokens, length in lengths]
    asked = [examples[i] for i in experience.group.tolist()]
    verdicts = task.verify(asked, texts)
    refuse_unjudged(verdicts)
    return experience, asked, texts, verdicts


def sample(policy: Policy, task: Task, prompts: int, samples: int, seed: int) -> Sampled:
    """Responses to up to `prompts` held-out examples.

    Draws from a generator of its own, so that training is the same with and without evaluation.
    """
    examples = task.held_out(prompts) if samples else []
    generator = torch.Generator(next(policy.model.parameters()).device).manual_seed(seed)
    solutions, lengths = list[Any](), list[int]()
    for i in range(0, len(examples), CHUNK):
        experience, *columns = attempts(policy, task, examples[i : i + CHUNK], samples, generator)
        judged = zip(*columns, strict=True)
        solutions += [task.solution(e, r) if v.reward > 0 else None for e, r, v in judged]
        lengths += experience.mask.sum(1).tolist()
    starts = range(0, len(solutions), samples or 1)
    return Sampled(*([x[i : i + samples] for i in starts] for x in (solutions, lengths)))


def evaluate(policy: Policy, task: Task, prompts: int, samples: int, seed: int) -> dict[str, float]:
    """pass@k for k in 1, 4, 16, 64 (up to `samples`) and distinct right solutions per example.

    Empty where the task holds out nothing.
    """
    found = sample(policy, task, prompts, samples, seed).solutions
    if not found:
        return {}
    correct = [sum(s is not None for s in group) for group in found]
    distinct = [len({s for s in group if s is not None}) for group in found]
    ks = [k for k in KS if k <= samples]
    means = pass_at_k(correct, samples, ks).mean(0).tolist()
    out = {f"pass@{k}": mean for k, mean in zip(ks, means, strict=True)}
    return {**out, "distinct": sum(distinct) / len(distinct)}

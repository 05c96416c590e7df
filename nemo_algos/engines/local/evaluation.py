"""Held-out evaluation: unbiased pass@k and the number of distinct right solutions."""

import functools
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch

from nemo_algos.algorithms.core.groups import succeeded
from nemo_algos.algorithms.core.pass_at_k import pass_at_k
from nemo_algos.engines.data.prompts import last_user_message
from nemo_algos.engines.data.tasks import Response, Task
from nemo_algos.engines.local.experience import Experience, Policy, generate
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.weighted import parts, refuse_unjudged

KS = (1, 4, 16, 64)
CHUNK = 32  # prompts generated at a time
SEED = 1234  # of every evaluation of a run


class Shown(NamedTuple):
    """A response that a person sees."""

    prompt: str
    text: str
    reward: float


class Sampled(NamedTuple):
    """`samples` responses to each held-out example: its solution (None: wrong), and its tokens.

    verdicts: of all responses; first: to each example one of them.
    """

    solutions: list[list[Any]]
    lengths: list[list[int]]
    verdicts: Sequence[Verdict] = ()
    first: Sequence[Shown] = ()


def attempts(
    policy: Policy, task: Task, examples: list[Any], samples: int, generator: torch.Generator
) -> tuple[Experience, list[Any], list[Response], list[Verdict]]:
    """`samples` responses to each example; [B]: the example, the text and the verdict of each.

    Raises Unjudged where none could be judged.
    """
    experience = generate(policy, task, examples, samples, generator)
    lengths = zip(experience.responses(), experience.mask.sum(1).tolist(), strict=True)
    said = functools.cache(lambda tokens: policy.text([*tokens]))  # many responses are the same
    texts = [Response(said(tuple(tokens)), length) for tokens, length in lengths]
    asked = [examples[i] for i in experience.group.tolist()]
    verdicts = task.verify(asked, texts)
    refuse_unjudged(verdicts)
    return experience, asked, texts, verdicts


def sample(
    policy: Policy,
    task: Task,
    prompts: int,
    samples: int,
    seed: int,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Sampled:
    """Responses to up to `prompts` held-out examples; track: goes through the chunks, in sight.

    Draws from a generator of its own, so that training is the same with and without evaluation.
    Raises FloatingPointError where a log-prob is not finite.
    """
    examples = task.held_out(prompts) if samples else []
    generator = torch.Generator(next(policy.model.parameters()).device).manual_seed(seed)
    answered = list[tuple[Any, Response]]()
    lengths = list[int]()
    verdicts = list[Verdict]()
    first = list[Shown]()
    for i in track(range(0, len(examples), CHUNK)):
        chunk = examples[i : i + CHUNK]
        experience, asked, texts, judgements = attempts(policy, task, chunk, samples, generator)
        experience.check_finite()
        judged = list(zip(asked, texts, judgements, strict=True))
        answered += zip(asked, texts, strict=True)
        lengths += experience.mask.sum(1).tolist()
        verdicts += judgements
        for example, text, verdict in judged[::samples]:
            first.append(Shown(last_user_message(task.prompt(example)), text, verdict.reward))
    rewards = torch.tensor([verdict.reward for verdict in verdicts], dtype=torch.float64)
    solutions = []
    for response, success in zip(answered, succeeded(rewards).tolist(), strict=True):
        solutions.append(task.solution(*response) if success else None)
    grouped = []
    sizes = []
    for i in range(0, len(solutions), samples or 1):
        grouped.append(solutions[i : i + samples])
        sizes.append(lengths[i : i + samples])
    return Sampled(grouped, sizes, verdicts, first)


def names(samples: int, rewards: Iterable[str] = ()) -> list[str]:
    """What `measured` gives for so many samples, judged by named rewards or by one without ("")."""
    known = ["accuracy", *(f"pass@{k}" for k in KS if k <= samples), "distinct"]
    if samples:
        return [*known, *(f"reward/{name}" for name in rewards if name)]
    return []


def measure(found: Sampled) -> dict[str, float]:
    """The mean reward (NeMo-RL's name is accuracy), pass@k for k in 1, 4, 16, 64 (up to `samples`).

    Distinct right solutions per example; each named reward's mean, unweighted. Empty where the task
    holds out nothing.
    """
    if not found.solutions:
        return {}
    samples = len(found.solutions[0])
    correct = list[int]()
    distinct = list[int]()
    for group in found.solutions:
        right = [s for s in group if s is not None]
        correct.append(len(right))
        distinct.append(len(set(right)))
    passed = pass_at_k(correct, samples, [k for k in KS if k <= samples]).mean(0).tolist()
    named = {}
    for name, verdicts in parts(found.verdicts).items():
        named[name] = fmean(verdict.reward for verdict in verdicts)
    accuracy = fmean(verdict.reward for verdict in found.verdicts)
    values = (accuracy, *passed, fmean(distinct), *named.values())
    return dict(zip(names(samples, named), values, strict=True))

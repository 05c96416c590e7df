"""How much of the accuracy hangs on tokens of high entropy: ERPO's figure 1b.

Of a response's T tokens ceil(share T) are marked: those of highest entropy, of lowest, or any. At
one of them, drawn at random, the response is cut, a random other token takes its place, and the
policy goes on from there. An end token is neither marked nor put in.
"""

from itertools import groupby
from math import ceil

import torch
from torch import Tensor

from nemo_algos.engines.local.experience import Experience, Policy
from nemo_algos.lab.evals.schema import Perturbation

ORDER = {"high_entropy": -1.0, "low_entropy": 1.0, "any": 0.0}


def perturb(
    policy: Policy,
    prompt: list[int],
    drawn: Experience,
    asked: Perturbation,
    limit: int,
    generator: torch.Generator,
) -> list[list[int]]:
    """Token ids of the responses to `prompt`, each perturbed, of at most `limit` tokens.

    A response that is an end token alone stays as it is.
    """
    chance = torch.Generator().manual_seed(generator.initial_seed())
    found = drawn.responses()
    contents = [[t for t in tokens if t not in policy.ends] for tokens in found]
    begun = {
        i: _begun(content, drawn.entropy[i, : len(content)], policy.words, asked, chance)
        for i, content in enumerate(contents)
        if content
    }
    by_length = sorted(begun, key=lambda i: len(begun[i]))  # a batch's prompts have one length
    for _, rows in groupby(by_length, key=lambda i: len(begun[i])):
        batch = list(rows)
        ends = policy.generate([[*prompt, *begun[i]] for i in batch], 1, generator).responses()
        for i, end in zip(batch, ends, strict=True):
            found[i] = [*begun[i], *end][:limit]
    return found


def _begun(
    tokens: list[int],
    entropy: Tensor,
    words: list[int],
    asked: Perturbation,
    chance: torch.Generator,
) -> list[int]:
    """The tokens before the perturbed one, and what takes its place."""
    order = torch.randperm(len(tokens), generator=chance)  # of equal entropies any may be marked
    ranked = order[(ORDER[asked.tokens] * entropy[order]).argsort(stable=True)]
    place = int(ranked[_below(ceil(asked.share * len(tokens)), chance)])
    others = [word for word in words if word != tokens[place]]
    return [*tokens[:place], others[_below(len(others), chance)]]


def _below(n: int, chance: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=chance))

"""Trees of tokens with a softmax policy at each node, so small that expectations are finite sums.

N inner nodes, V tokens, L leaves (the possible answers), S positions. A policy is a table of logits
[..., N, V], float64; what is in front are policies that are treated alike.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Prefix = tuple[int, ...]
SPREAD = 0.7  # of the logarithm of a wrong answer's mass


@dataclass(frozen=True)
class World:
    """One prompt.

    node, token, mask [L,S]: where each answer's tokens are drawn; rewards [L]; mass [L]: the
    answers' probabilities but for the pass rate; second: the second right answer.
    """

    node: Tensor
    token: Tensor
    mask: Tensor
    rewards: Tensor
    mass: Tensor
    second: int | None
    tokens: int

    @property
    def right(self) -> Tensor:
        """Answers of the full reward, bool [L]."""
        return self.rewards == 1

    def logits(self, pass_rate: float) -> Tensor:
        """The policy [N,V] that gives the right answers this probability together."""
        mass = self.mass.clone()
        for of, share in ((self.right, pass_rate), (~self.right, 1 - pass_rate)):
            mass[of] *= share / mass[of].sum()
        return self.visits(mass).log().log_softmax(-1)

    def visits(self, mass: Tensor) -> Tensor:
        """How often each token is drawn at each node, [N,V], of answers' probabilities [L]."""
        table = mass.new_zeros((int(self.node.max()) + 1) * self.tokens)
        spread = mass[:, None].expand(self.mask.shape)[self.mask]
        return table.index_add(0, self.cells[self.mask], spread).view(-1, self.tokens)

    @property
    def cells(self) -> Tensor:
        """Each answer's entries of a table, [L,S]."""
        return self.node * self.tokens + self.token

    def summed(self, table: Tensor) -> Tensor:
        """Over each answer's tokens, [..., N, V] -> [..., L]."""
        return table.flatten(-2)[..., self.cells].where(self.mask, 0.0).sum(-1)

    def answers(self, logits: Tensor) -> Tensor:
        """Log-probs of the answers, [..., L]."""
        return self.summed(logits.log_softmax(-1))

    def reward(self, logits: Tensor) -> Tensor:
        """The expected reward, [...]."""
        return (self.answers(logits).exp() * self.rewards).sum(-1)

    def gradient(self, logits: Tensor) -> Tensor:
        """That of the expected reward, [..., N, V]."""
        logits = logits.detach().requires_grad_()
        return torch.autograd.grad(self.reward(logits).sum(), logits)[0]

    def speed(self, logits: Tensor, direction: Tensor) -> Tensor:
        """d^T F d, [...]: a step of e in this direction has a KL of e^2 / 2 of it."""
        p = logits.softmax(-1)
        slope = direction - (p * direction).sum(-1, keepdim=True)
        return (self.answers(logits).exp() * self.summed(slope).square()).sum(-1)

    def moved(self, logits: Tensor, nats: float) -> Tensor:
        """The policy after a step along the gradient; down for nats < 0; |nats|: its KL."""
        up = self.gradient(logits)
        return logits + np.sign(nats) * (2 * abs(nats) / self.speed(logits, up)).sqrt() * up


def node_entropy(logits: Tensor) -> Tensor:
    """Of the next token at each node, nats, [..., N]."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def grown(
    tokens: int,
    inner: list[Prefix],
    reward: Callable[[Prefix], float],
    right: dict[Prefix, float],
) -> World:
    """The world of these inner nodes.

    right: the masses of the right answers, the likeliest first; reward: of the others, whose masses
    are drawn (log-normal), the same ones each time.
    """
    places = {prefix: i for i, prefix in enumerate(inner)}
    paths: list[Prefix] = [(*p, v) for p in inner for v in range(tokens) if (*p, v) not in places]
    shape = (len(paths), max(map(len, paths)))
    node, token = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    for i, path in enumerate(paths):
        node[i, : len(path)] = torch.tensor([places[path[:t]] for t in range(len(path))])
        token[i, : len(path)] = torch.tensor(path)
    mask = torch.arange(shape[1]) < torch.tensor([[len(path)] for path in paths])
    rewards = torch.tensor([1.0 if p in right else reward(p) for p in paths], dtype=torch.float64)
    seed = zlib.crc32(repr(paths).encode())
    mass = torch.from_numpy(np.exp(SPREAD * np.random.default_rng(seed).normal(size=shape[0])))
    for path, share in right.items():
        mass[paths.index(path)] = share
    second = paths.index([*right][1]) if len(right) > 1 else None
    return World(node, token, mask, rewards, mass, second, tokens)


def full(tokens: int, depth: int) -> list[Prefix]:
    """The inner nodes of a tree whose answers all have `depth` tokens."""
    return [p for d in range(depth) for p in itertools.product(range(tokens), repeat=d)]


def nothing(path: Prefix) -> float:
    """No reward."""
    return 0.0


WANTED, HIDDEN = (2, 0, 3), (1, 2, 0, 0, 1, 2)
WORLDS: dict[str, Callable[[], World]] = {
    # seven answers of one to three tokens; 2-1-0 is right, and 2-2 with a fifth of the pass rate
    "small": lambda: grown(3, [(), (2,), (2, 1)], nothing, {(2, 1, 0): 4, (2, 2): 1}),
    # one right answer of 81
    "sparse": lambda: grown(3, full(3, 4), nothing, {(2, 0, 1, 2): 1}),
    # 64 answers; the reward is the share of right tokens
    "dense": lambda: grown(
        4, full(4, 3), lambda p: sum(map(int.__eq__, p, WANTED)) / 3, {WANTED: 1}
    ),
    # five right answers of 125, each half as likely as the one before
    "several": lambda: grown(
        5, full(5, 3), nothing,
        {(4, 1, 2): 16, (0, 3, 1): 8, (2, 2, 2): 4, (3, 0, 4): 2, (1, 4, 0): 1},
    ),
    # two right answers of 81; the second is 50 times rarer
    "rare": lambda: grown(3, full(3, 4), nothing, {(2, 0, 1, 1): 50, (0, 2, 2, 0): 1}),
    # short answers that begin with 0 are worth 0.3; one of six tokens, behind 1, is worth 1
    "deceptive": lambda: grown(
        3, [*(HIDDEN[:d] for d in range(6)), (0,), (2,)], lambda p: 0.3 * (p[0] == 0), {HIDDEN: 1}
    ),
}  # fmt: skip

"""One arm in one cell: its expected update, what it moves, and how both spread over batches."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import groups
import numpy as np
import torch
from cells import CORRECTIONS, UPDATES, Cell
from expected import Policies, directions, is_batchwise, parts
from groups import Batches
from torch import Tensor
from world import WORLDS, World, node_entropy

from nemo_algos import Algorithm, ConfigError, build

MOST, DRAWS = 4000, 1000  # batches: beyond MOST they are drawn
FEW = 300  # both, where the driver half sees a batch at a time: 1 ms each
WARM = 50  # batches before, for a memory
STEP = 1e-3  # nats: what the first update of the base cell moves, in the mean, by its Fisher metric
VERSION = 1e-4  # nats between two versions of a stale sampler's trainer
COMPANION = 0.5  # the second prompt's pass rate
ZERO = 1e-9
Numbers = dict[str, float]  # NaN where it has no meaning


def algorithm_of(block: Mapping[str, Any], correction: str) -> Algorithm | None:
    """None where the method has no meaning with the correction."""
    try:
        return build(dict(block), CORRECTIONS[correction])
    except ConfigError:
        if correction == "none":
            raise
        return None


def policies(world: World, cell: Cell, algorithm: Algorithm) -> Policies:
    """Of both prompts where there are two. The reference is a less able policy, with noise.

    Where it is a teacher (opd) it is an abler one, of twice the odds.
    """
    rates = torch.tensor([cell.pass_rate, COMPANION][: cell.prompts], dtype=torch.float64)
    trainer = torch.stack([world.logits(p) for p in rates.tolist()])
    teaches = "teacher" in algorithm.needs
    odds = rates / (1 - rates) * (2 if teaches else 0.5)
    reference = torch.stack([world.logits(p) for p in (odds / (1 + odds)).tolist()])
    if not teaches:
        reference = noisy(reference, 0.1, seed=7)
    sampler = torch.stack([sampled(world, x, cell.sampler) for x in trainer])
    return Policies(trainer, sampler, reference)


def sampled(world: World, logits: Tensor, kind: str) -> Tensor:
    """The sampler beside a trainer's logits [N,V]."""
    name, _, size = kind.partition(" ")
    if name == "same":
        return logits
    if name == "stale":
        for _ in range(int(size)):
            logits = world.moved(logits, -VERSION)
        return logits
    if name == "noise":
        return noisy(logits, float(size.split()[0]), seed=2 if size.endswith("again") else 1)
    p, order = logits.softmax(-1).sort(-1, descending=True)
    kept = torch.zeros_like(p).scatter(-1, order, (p.cumsum(-1) - p < float(size)).double())
    return logits.masked_fill(kept == 0, -math.inf)


def noisy(logits: Tensor, nats: float, seed: int) -> Tensor:
    """Each logit with an error of this deviation."""
    errors = np.random.default_rng(seed).normal(size=logits.shape[-2:])
    return logits + nats * torch.from_numpy(errors)


def batches(world: World, cell: Cell, p: Tensor, batchwise: bool) -> Batches:
    """All that a sampler with answers of probabilities p [P,L] can give, where these are few."""
    most, draws = (FEW, FEW) if batchwise else (MOST, DRAWS)
    if cell.prompts == 1 and groups.number(p[0], cell.group) <= most:
        return groups.every(p[0], cell.group)
    seed = zlib.crc32(repr(cell[:4]).encode())
    found = groups.drawn(p[0], world.right, cell.group, draws, seed)
    others = groups.at_random(p[1:], len(found.weight), cell.group, seed)
    return found._replace(answers=torch.cat([found.answers, others], 1))


def learning_rate(block: Mapping[str, Any]) -> float:
    """The step size at which the first update of the base cell moves STEP nats in the mean."""
    algorithm = algorithm_of(block, "none")
    assert algorithm
    run = Run(algorithm, Cell())
    speed = run.world.speed(run.trainer[:1], run.direction(run.start)[:, 0])
    return math.sqrt(2 * STEP / float((run.batches.weight * speed).sum()))


class Run:
    """The batches of a cell and their policies, as the updates go on."""

    def __init__(self, algorithm: Algorithm, cell: Cell) -> None:
        self.world = world = WORLDS[cell.world]()
        self.algorithm = algorithm.with_max_tokens(world.mask.shape[1])
        found = policies(world, cell, algorithm)
        self.trainer, self.sampler, p = *found[:2], world.answers(found.sampler).exp()
        self.batches = batches(world, cell, p, is_batchwise(algorithm))
        self.start = self.trainer.expand(len(self.batches.weight), *self.trainer.shape)
        warm = groups.at_random(p, WARM, cell.group, seed=3)
        self.parts = [*parts(self.algorithm, world, found, self.batches, warm)]

    def direction(self, logits: Tensor) -> Tensor:
        """Of every batch, [M,P,N,V]."""
        return directions(self.algorithm, self.world, self.batches.answers, self.parts, logits)

    @property
    def mismatch(self) -> float:
        """Mean |log pi - log pi_sampler| of the sampler's tokens, nats."""
        trainer, sampler = self.trainer[0].log_softmax(-1), self.sampler[0].log_softmax(-1)
        visits = self.world.visits(self.world.answers(sampler).exp())
        gap = (trainer - sampler).abs().where(visits > 0, 0.0)
        return float((visits * gap).sum() / visits.sum())


def measured(block: Mapping[str, Any], cell: Cell, rate: float) -> list[dict[str, Any]]:
    """A row for each of UPDATES; none where the arm has no meaning in the cell.

    rate: of plain gradient ascent, as `learning_rate` gives it.
    """
    algorithm, rows = algorithm_of(block, cell.correction), []
    if algorithm is None:
        return rows
    run = Run(algorithm, cell)
    facts, logits = {"batches": len(run.start), "mismatch": run.mismatch}, run.start
    for number in range(1, cell.updates + 1):
        before, direction = logits, run.direction(logits)
        logits = before + rate * direction
        if number in UPDATES[cell.updates]:
            found = _of_direction(run, direction, before) | _of_movement(run, logits[:, 0])
            there = {k: v for k, v in found.items() if not math.isnan(v)}
            rows.append({"update": number, **facts, **there})
    return rows


def _of_direction(run: Run, direction: Tensor, logits: Tensor) -> Numbers:
    """Of the first prompt."""
    weight, world, g = run.batches.weight, run.world, direction[:, 0].flatten(1)
    mean, truth = weight @ g, weight @ world.gradient(logits[:, 0]).flatten(1)
    size, norm = float(mean @ truth / truth.square().sum()), float(mean.norm())
    across, along = float((mean - size * truth).norm()), size * float(truth.norm())
    variance = float(weight @ g.square().sum(1)) - norm**2
    visits, entropy = (
        world.visits(world.answers(run.trainer[0]).exp()),
        node_entropy(run.trainer[0]),
    )
    forks = entropy > visits.sum(1) @ entropy / visits.sum()
    shares = mean.view_as(visits).square().sum(1)
    wrong = (mean * truth < 0) & ((mean * truth).abs() > ZERO * norm * truth.norm())
    found: Numbers = {
        "size": size,
        "wrong_signs": float(visits.flatten()[wrong].sum() / visits.sum()),
    }
    if norm > ZERO:
        found["angle"] = math.degrees(math.atan2(across, along))
        found["noise"] = math.sqrt(max(variance, 0)) / norm
        found["forks"] = float(shares[forks].sum() / shares.sum())
        found["error"] = _error(run.batches, g) / norm
    return found


def _error(found: Batches, values: Tensor) -> float:
    """The standard error of the mean's length, by strata; NaN where all batches are there."""
    total = 0.0 if found.stratum[0] >= 0 else math.nan
    for stratum in found.stratum.unique():
        here = found.stratum == stratum
        if (n := int(here.sum())) > 1:
            total += float(found.weight[here].sum().square() * values[here].var(0).sum() / n)
    return math.sqrt(total)


def _of_movement(run: Run, logits: Tensor) -> Numbers:
    """Of the first prompt, from the policy that the batch began with."""
    weight, world, start = run.batches.weight, run.world, run.trainer[0]
    before, after = world.answers(start), world.answers(logits)
    change, entropy = after.exp() - before.exp(), lambda logp: -(logp.exp() * logp).sum(-1)
    kl = float(weight @ (before.exp() * (before - after)).sum(1))
    gain = float(weight @ (change * world.rewards).sum(1))
    return {
        "kl": kl,
        "tv": float(weight @ change.abs().sum(1)) / 2,
        "gain": gain,
        "gain_per_kl": gain / kl if kl > ZERO else math.nan,
        "entropy": float(weight @ (entropy(after) - entropy(before))),
        "second": float(weight @ change[:, world.second]) if world.second is not None else math.nan,
    }

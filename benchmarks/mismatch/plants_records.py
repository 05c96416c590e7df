"""Kinds in which both sides compute right and the records are wrong; and clean variants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from kinds import CORRECT, Draws, Kind, Records, Rollout, cause, unclaimed
from rollouts import GROUP, Side, score
from torch import Tensor
from worlds import World

FINE = ("clean", "precision")


def on(side: str, change: Callable[[Tensor], Tensor]) -> Records:
    """One side's log-probs."""
    return lambda r, world, draw: replace(r, **{side: change(getattr(r, side))})


def rows(index: Callable[[int, torch.Generator], Tensor]) -> Records:
    """The trainer's rows in another order."""

    def reorder(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
        i = index(len(r.tokens), draw)
        return replace(r, trainer=r.trainer[i], entropy=r.entropy[i])

    return reorder


def swapped(count: int, draw: torch.Generator) -> Tensor:
    """Two rows of two prompts."""
    i = torch.arange(count)
    i[[1, count // 2]] = i[[count // 2, 1]]
    return i


def permuted(count: int, draw: torch.Generator) -> Tensor:
    """Rotated within every group."""
    i = torch.arange(count).reshape(-1, GROUP)
    return i.roll(1, 1).flatten()


def selected(*index: Tensor | slice) -> Records:
    """Some rows or columns of everything."""

    def select(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
        names = ("tokens", "mask", "sampler", "trainer", "entropy")
        kept = {name: getattr(r, name)[index[0]] for name in names}
        prompts = [r.prompts[i] for i in torch.arange(len(r.prompts))[index[0]].tolist()]
        if len(index) > 1:
            kept = {name: value[:, index[1]] for name, value in kept.items()}
        return replace(r, prompts=prompts, **kept)

    return select


def end_zero(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
    """The end token's log-prob is not recorded."""
    return replace(r, sampler=r.sampler.masked_fill(r.tokens == world.end, 0))


def mask_long(more: int) -> Records:
    """The mask goes on behind the end, over pads that the sampler never drew."""

    def widen(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
        length = r.mask.sum(1, keepdim=True)
        return replace(r, mask=torch.arange(world.length) < length + more)

    return widen


def broken(share: float, value: float, side: str) -> Records:
    """Some log-probs are no numbers."""

    def strike(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
        hit = torch.rand(r.tokens.shape, generator=draw) < share
        return replace(r, **{side: getattr(r, side).masked_fill(hit, value)})

    return strike


def rare(share: float, value: Callable[[Tensor, torch.Generator], Tensor]) -> Records:
    """A share of the sampler's log-probs is value(log-probs, generator)."""

    def strike(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
        hit = (torch.rand(r.tokens.shape, generator=draw) < share) & r.mask
        return replace(r, sampler=torch.where(hit, value(r.sampler, draw), r.sampler))

    return strike


def spike(x: Tensor, draw: torch.Generator) -> Tensor:
    """5 to 15 nats lower."""
    return x - 5 - 10 * torch.rand(x.shape, generator=draw)


def garbled(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
    """One response's log-probs are another text's."""
    row = int(torch.randint(len(r.tokens), (), generator=draw))
    sampler = r.sampler.clone()
    sampler[row] = -12 * torch.rand(sampler[row].shape, generator=draw)
    return replace(r, sampler=sampler)


def forced(place: int) -> Records:
    """The token at a place has log-prob 0, as of a grammar or a prefilled answer."""
    return on("sampler", lambda x: x.index_fill(1, torch.tensor([place]), 0.0))


def some_shifted(count: int) -> Records:
    """Every so many-th response of the trainer lies a place to the left."""

    def shift(r: Rollout, world: World, draw: torch.Generator) -> Rollout:
        trainer = r.trainer.clone()
        trainer[::count] = trainer[::count].roll(-1, 1)
        return replace(r, trainer=trainer)

    return shift


def zeros(start: int) -> Records:
    """The trainer's log-probs end at a length, and zeros follow."""
    return on("trainer", lambda x: torch.cat([x[:, :start], torch.zeros_like(x[:, start:])], 1))


def retokenized(
    world: World, side: Side, prompts: list[list[int]], tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """The trainer scores the tokens of the response's text, one by one beside those drawn."""
    again = tokens.clone()
    for row in again:
        text = world.tokenizer.decode(row.tolist())
        ids = world.tokenizer(text, add_special_tokens=False)["input_ids"][: len(row)]
        row.fill_(world.end)[: len(ids)] = torch.tensor(ids)
    return score(world, side, prompts, again)


def _record(name: str, records: Records, side: str = "sampler", **parameters: Any) -> Kind:
    causes = cause(name.partition("-")[0], side=side, **parameters)
    return Kind(name, causes, records=records, prompts=16)


def _clean(
    name: str, records: Records | None = None, sampler: Side = CORRECT, trainer: Side = CORRECT
) -> Kind:
    count = 16 if sampler == trainer else 6
    return Kind(f"clean-{name}", (), sampler, trainer, records, also=FINE, prompts=count)


TWICE = torch.arange(16 * GROUP).reshape(-1, GROUP)[:, [0, 0, 1, 1]].flatten()


def kinds(draws: Draws) -> list[Kind]:
    """With a seed's parameters."""
    limit = draws.number("clamp-sampler", -6, -3)
    lower = draws.number("clamp-trainer", -9, -6)
    start = draws.count("padding", 24, 40)
    factor = draws.number("log_factor", 0.75, 0.95)
    every = draws.count("shift-some", 3, 6)
    return [
        _clean("plain"),
        _clean("duplicates", selected(TWICE)),
        _clean("short", selected(slice(None), slice(0, 6))),
        _clean("eager", trainer=Side(config={"_attn_implementation": "eager"})),
        _clean("same-precision", sampler=Side(dtype=torch.float32)),
        _clean("half-precision-records", on("sampler", lambda x: x.half().float())),
        Kind("few", also=("few", "clean"), records=selected(slice(0, 4), slice(0, 12)), prompts=16),
        _record("log_base-2", on("sampler", lambda x: x / math.log(2)), base=[2, 0.05]),
        _record("log_base-10", on("trainer", lambda x: x / math.log(10)), "trainer",
                base=[10, 0.3]),
        _record("log_factor", on("sampler", lambda x: x / factor), factor=[1 / factor, 0.02]),
        _record("clamp-sampler", on("sampler", lambda x: x.clamp(min=limit)), least=[limit, 0.1]),
        _record(
            "clamp-trainer", on("trainer", lambda x: x.clamp(min=lower)), "trainer",
            least=[lower, 0.1],
        ),
        _record("shift-left", on("trainer", lambda x: x.roll(-1, 1)), "either", places=(-1, 1)),
        _record("shift-right", on("trainer", lambda x: x.roll(1, 1)), "either", places=(-1, 1)),
        _record("shift-some", some_shifted(every), "either", places=(-1, 1)),
        _record("rows-swapped", rows(swapped), side="either"),
        _record("rows-permuted", rows(permuted), side="either"),
        _record("end_of_response-zero", end_zero),
        _record("end_of_response-mask-1", mask_long(1), side="either"),
        _record("end_of_response-mask-all", mask_long(99), side="either"),
        Kind("retokenized", cause("retokenized", side="trainer"), prompts=16, score=retokenized,
             worlds=lambda name: name == "smollm2"),
        _record("padding", zeros(start), side="trainer"),
        _record("not_finite-nan", broken(0.01, math.nan, "trainer"), side="trainer"),
        _record("not_finite-inf", broken(0.005, -math.inf, "sampler")),
        *(
            unclaimed(f"rare-{name}", records=records, prompts=16)
            for name, records in {
                "spikes": rare(draws.number("rare-spikes", 0.003, 0.03), spike),
                "zeros": rare(draws.number("rare-zeros", 0.003, 0.03), lambda x, _: x * 0),
                "garbled": garbled,
                "forced": forced(draws.count("rare-forced", 2, 20)),
            }.items()
        ),
    ]  # fmt: skip

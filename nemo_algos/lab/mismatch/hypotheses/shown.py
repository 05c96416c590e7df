"""What the model is shown: another prompt, other positions, other keys to attend to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.engines.mismatch.responses import Response
from nemo_algos.lab.mismatch.hypotheses.forward import (
    Attempt,
    Case,
    Hypothesis,
    named,
    of_lines,
    search_grid,
)
from nemo_algos.lab.mismatch.network import Change, Lines, Network, lines, within

Array = np.ndarray
OFF = 6.0  # standard deviations of rounding


def _behind(prompt: Callable[[Response], Array]) -> Change:
    """Responses stand behind another prompt."""
    return of_lines(lambda _, __, some: lines(some, list(map(prompt, some))))


def template(case: Case, attempt: Attempt) -> None:
    """A part of the template is missing, or stands twice; the prompt is cut on the left."""

    def add(variant: str, edit: Callable[[Array], Array]) -> None:
        attempt({"variant": variant}, _behind(lambda r: edit(r.prompt)))

    tokenizer = case.network.tokenizer
    bos = getattr(tokenizer, "bos_token_id", None)
    bos = case.network.model.config.bos_token_id if bos is None else bos
    if bos is not None:
        add("BOS more", lambda p: np.r_[bos, p])
        add("no BOS", lambda p: p[1:] if p[0] == bos else p)
    add("no system prompt", _without_first_turn)
    add("no generation prompt", lambda p: p[: _turns(p)[-1]] if len(_turns(p)) > 1 else p)
    if tokenizer is not None and tokenizer.chat_template:
        system = _system(tokenizer)
        add("default system prompt", lambda p: np.r_[system, p])
    add("last token missing", lambda p: p[:-1])


def truncated(case: Case, attempt: Attempt) -> None:
    """The prompt is cut on its left, by so many tokens or to so many."""
    grid = [n for n in (1, 2, 4, 8, 16, 24, 32, 64, 128) if n < case.longest]
    cut = lambda n: _behind(lambda r: r.prompt[min(n, r.begin - 1) :])  # noqa: E731
    search_grid(attempt, "cut", grid, cut, steps=6)
    grid = [n for n in (16, 32, 64, 128, 256, 512, 1024) if n < case.longest]
    search_grid(attempt, "kept", grid, lambda n: _behind(lambda r: r.prompt[-n:]))


def _turns(prompt: Array) -> Array:
    """Where turns begin: at the id that the prompt begins with."""
    return np.flatnonzero(prompt == prompt[0])


def _without_first_turn(prompt: Array) -> Array:
    starts = _turns(prompt)
    return prompt[starts[1] :] if len(starts) > 2 else prompt


def _system(tokenizer: Any) -> Array:
    """What the template puts before a user's turn of its own accord; nothing where it does not."""
    turn = [{"role": "user", "content": "?"}]
    shown = tokenizer.apply_chat_template(turn, tokenize=True, add_generation_prompt=True)
    ids = np.asarray(getattr(shown, "input_ids", shown)).ravel()
    starts = _turns(ids)
    return ids[: starts[1]] if len(starts) > 2 else ids[:0]


def pads_attended(case: Case, attempt: Attempt) -> None:
    """Prompts are padded on the left, and no mask hides the pads."""
    pads = {case.pad, 0, getattr(case.network.model.config, "eos_token_id", None) or 0}
    for pad, size in product(sorted(p for p in pads if isinstance(p, int)), case.micro_batches):
        padded = lambda r, pad=pad, size=size: np.pad(  # noqa: E731
            r.prompt, (r.pads(size), 0), constant_values=pad
        )
        attempt({"pad": pad, "micro_batch": size}, _behind(padded))


def positions(case: Case, attempt: Attempt) -> None:
    """Positions of a response do not go on where its prompt's end."""

    def moved(offset: Callable[[Response, int], int]) -> Change:
        def edit(network: Network, shown: Lines, some: Sequence[Response]) -> Lines:
            place = shown.positions.clone()
            for (line, at), r in zip(shown.at, some, strict=True):
                first = int(at[0]) + 1
                place[line, first:] += offset(r, first)
            return replace(shown, positions=place.clamp(min=0))

        return of_lines(edit)

    for k in (1, 2, 3, 4, 8, 16, 32, 64, 128):
        for offset in (k, -k):
            attempt({"offset": offset}, moved(lambda *_, offset=offset: offset))
    for size in case.micro_batches:
        pads = moved(lambda r, _, size=size: r.pads(size))
        attempt({"offset": "pads", "micro_batch": size}, pads)
    attempt({"offset": "from 0"}, moved(lambda _, first: -first))


def packing(case: Case, attempt: Attempt) -> None:
    """Sequences of a pack see each other, with positions of their own or of the pack."""
    for size in (2, 4, 8):
        attempt({"responses": size, "positions": "own"}, of_lines(partial(_packed, size, True)))
        of_the_pack = of_lines(partial(_packed, size, False))
        attempt({"responses": size, "positions": "of the pack"}, of_the_pack)


def _packed(size: int, own: bool, _: Network, __: Lines, some: Sequence[Response]) -> Lines:
    packs = [some[i : i + size] for i in range(0, len(some), size)]
    rows = [torch.as_tensor(np.concatenate([r.ids for r in pack])) for pack in packs]
    places = [torch.cat([torch.arange(len(r.ids)) for r in pack]) for pack in packs]
    ids, place = pad_sequence(rows, batch_first=True), pad_sequence(places, batch_first=True)
    along = torch.arange(ids.shape[1])
    attend = (along <= along[:, None]).expand(len(ids), -1, -1)
    at = []
    for line, pack in enumerate(packs):
        ends = np.cumsum([len(r.ids) for r in pack])
        starts = [0, *ends[:-1]]
        at += [(line, torch.as_tensor(r.at + s - 1)) for r, s in zip(pack, starts, strict=True)]
    return Lines(ids, place if own else along.expand_as(ids), attend, at)


def sliding_window(case: Case, attempt: Attempt) -> None:
    """A query sees the last keys alone: as many as stand before the first token that is off."""
    grid = [2**k for k in range(3, 13) if 2**k < case.longest + 256]
    off = case.responses.column("at")[np.abs(case.apart) > OFF]
    grid = sorted({*grid, int(off.min()) - 1} - {0}) if len(off) else grid

    def windowed(size: int) -> Change:
        return of_lines(lambda _, shown, __: replace(shown, attend=within(shown, size)))

    search_grid(attempt, "window", grid, windowed, steps=8)


HYPOTHESES = named(template, pads_attended, positions, packing, sliding_window)
HYPOTHESES.append(Hypothesis("template", truncated))

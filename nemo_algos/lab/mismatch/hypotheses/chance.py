"""A trainer that errs at random: dropout is on, or experts differ from pass to pass.

What it would have recorded is a distribution. A record is one more draw of it where it cannot be
told from draws: each token's rank among them is uniform, and equal contexts differ by as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import dropout

from nemo_algos.lab.mismatch.hypotheses.computed import having
from nemo_algos.lab.mismatch.hypotheses.fit import Record
from nemo_algos.lab.mismatch.hypotheses.forward import of_model
from nemo_algos.lab.mismatch.hypotheses.routes import noisy, routers
from nemo_algos.lab.mismatch.network import (
    Change,
    Network,
    edit_attributes,
    edit_outputs,
    modules,
    recompute,
)
from nemo_algos.lab.mismatch.responses import NEIGHBOURS, Responses

Array = np.ndarray
ROWS, DRAWS, STEPS = 3 * NEIGHBOURS, 7, 4  # responses; passes; of the search for the strength
LEAST, MOST = 1e-3, 0.9  # strengths
PAIRS, ALIKE = 8, 2.0  # of equal contexts, at least; of their differences to those of draws
STEADY = 0.3  # of the distance from the model
UNEVEN = 0.08  # of the ranks would have to move: of 700 tokens 0.04 is chance


class Found(NamedTuple):
    """name: of the cause; uneven: the share of ranks that are not as those of draws."""

    name: str
    parameter: dict[str, Any]
    uneven: float


def _dropped(*endings: str) -> Callable[[float], Change]:
    return lambda rate: of_model(
        lambda n: edit_outputs(modules(n, *endings), lambda _, y: dropout(y, rate))
    )


def _dropped_attention(rate: float) -> Change:
    @contextmanager
    def edit(network: Network) -> Iterator[None]:
        of = having(network, "attention_dropout")
        with (
            edit_attributes(of, "attention_dropout", lambda _: rate),
            edit_attributes(of, "training", lambda _: True),
        ):
            yield

    return of_model(edit)


WAYS: list[tuple[str, dict[str, Any], str, Callable[[float], Change]]] = [
    ("dropout", {"of": "mlp"}, "rate", _dropped(".mlp")),
    ("dropout", {"of": "attention and mlp"}, "rate", _dropped(".mlp", ".o_proj")),
    ("dropout", {"of": "attention weights"}, "rate", _dropped_attention),
    ("routes", {}, "noise", noisy),
]


def at_random(
    network: Network, responses: Responses, record: Record, base: Array
) -> tuple[str, dict[str, Any]] | None:
    """The cause and its parameter, where the record [N] is a draw; base [N]: without a change."""
    some = responses.first(ROWS)
    record, base = record.only(np.arange(len(some.row))), base[: len(some.row)]
    pairs = equal_contexts(some)
    if len(pairs) < PAIRS or _steady(record, base, pairs):
        return None
    found: list[Found] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name, more, key, change in WAYS if routers(network) else WAYS[:-1]:
            strength = _strength(network, some, record, base, change)
            draws = np.stack(
                [recompute(network, some, [change(strength)]).logprobs for _ in range(DRAWS)]
            )
            if _as_drawn(record.value, draws, pairs):
                uneven = ranks_off(record.value, draws)
                found.append(Found(name, more | {key: strength}, uneven))
    fits = [f for f in found if f.uneven < UNEVEN]
    if len({f.name for f in fits}) != 1:
        return None
    best = min(fits, key=lambda f: f.uneven)
    return best.name, best.parameter


def equal_contexts(responses: Responses) -> list[tuple[int, int]]:
    """Pairs of tokens that follow the same ids."""
    places: dict[bytes, list[int]] = {}
    start = 0
    for r in responses.each:
        for i, at in enumerate(r.at):
            places.setdefault(r.ids[: at + 1].tobytes(), []).append(start + i)
        start += len(r.at)
    return [pair for same in places.values() for pair in combinations(same, 2)]


def _steady(record: Record, base: Array, pairs: list[tuple[int, int]]) -> bool:
    """Whether equal contexts have equal numbers, as far from the model as these are."""
    i, j = np.array(pairs).T
    apart = np.abs(record.value[i] - record.value[j]) / record.scale[i]
    return bool(apart.mean() < STEADY * record.level(base))


def _strength(network: Network, some: Responses, record: Record, base: Array, change: Any) -> float:
    """At which a draw is as far from the model as the record is; variance grows with a rate."""
    wanted, at = record.level(base), 0.05
    for _ in range(STEPS):
        drawn = recompute(network, some, [change(at)]).logprobs
        level = float(np.minimum(np.abs(drawn - base) / record.scale, 30.0).mean())
        at = float(np.clip(at * np.clip(wanted / max(level, 1e-9), 0.2, 5.0) ** 1.5, LEAST, MOST))
    return at


def _as_drawn(value: Array, draws: Array, pairs: list[tuple[int, int]]) -> bool:
    """Whether equal contexts differ as much in the record as in the draws."""
    i, j = np.array(pairs).T
    own, theirs = np.abs(value[i] - value[j]).mean(), np.abs(draws[:, i] - draws[:, j]).mean()
    return bool(own < ALIKE * theirs and theirs < ALIKE * own)


def ranks_off(value: Array, draws: Array) -> float:
    """By how much the ranks of the values [N] among the draws [K,N] are not uniform."""
    rank = (draws < value).sum(0)
    share = np.bincount(rank, minlength=len(draws) + 1) / len(value)
    return float(np.abs(share - 1 / len(share)).sum() / 2)

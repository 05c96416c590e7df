"""Where the difference is: tokens, places, responses, prompts, versions and lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from nemo_algos.lab.mismatch.responses import Array, Responses

LEAST = 5  # tokens of a bucket
CHANCE = 1e-3  # that any bucket of a file without a pattern stands out so far
ALIKE = 0.8  # of the tokens of two buckets: then the one with fewer parts is told
TIMES = 2.0  # the mean |d| of the other tokens
# that are shown
BUCKETS = 4
WORST = 20
PERIODS = range(2, 9)  # of every n-th response
LISTED = 20  # values of a bucket, as text
PROMPT = "prompt of response"
ROWS = ("response", PROMPT)


class Bucket(NamedTuple):
    """Tokens that differ more than the others. by: what they share; values: which, as text.

    mean: mean |d|, nats; elsewhere: of the tokens that neither this bucket nor a clearer one has;
    share: of the sum of all |d|.
    """

    by: str
    values: str
    tokens: int
    mean: float
    elsewhere: float
    share: float


class _Found(NamedTuple):
    """A bucket's name and tokens [N]; chance: the logarithm of a p-value of all such buckets.

    parts: how many values or ranges it takes to say it.
    """

    by: str
    values: str
    tokens: Array
    chance: float
    parts: int = 1


def buckets(t: Responses) -> list[Bucket]:
    """Those that stand out, the clearest first, each among the tokens that none before has.

    The test is by ranks, so a few huge differences at random places are no bucket; |d| is compared
    with the probability that the token leaves to others, since rounding grows with that.
    """
    size = np.abs(t.d)
    likely = np.minimum(t.column("sampler"), t.column("trainer")).clip(-30, 0)
    relative = size / (1 - np.exp(likely) + 1e-3)
    columns = _columns(t)
    left = np.ones(len(size), bool)
    out = list[Bucket]()
    while len(out) < BUCKETS and left.sum() > LEAST:
        ranks = np.zeros(len(size))
        ranks[left] = stats.rankdata(relative[left])
        ranks[left] -= ranks[left].mean()
        found = []
        for by, x in columns.items():
            found += _found(by, x, ranks, left)
        found = [one for one in found if one.chance < np.log(CHANCE) and _more(one, size, left)]
        if not found:
            break
        clearest = min(found, key=lambda one: one.chance)
        alike = [one for one in found if _overlap(one.tokens, clearest.tokens) > ALIKE]
        best = min(alike, key=lambda one: (one.parts, -_overlap(one.tokens, clearest.tokens)))
        inside = size[best.tokens]
        left &= ~best.tokens
        bucket = Bucket(
            by=best.by,
            values=best.values,
            tokens=len(inside),
            mean=float(inside.mean()),
            elsewhere=float(size[left].mean()),
            share=float(inside.sum() / size.sum()),
        )
        out.append(bucket)
    return out


def _columns(t: Responses) -> dict[str, Array]:
    """What each token has, by its name, integers [N]; of two that are alike the first is told."""
    columns = {"place": t.column("place"), "token id": t.column("tokens")}
    if t.age is not None:
        columns["age of the weights"] = t.age[t.row]
    first: dict[bytes, int] = {}  # the first response to each prompt
    prompts = []
    begins = []
    lengths = []
    for i, r in enumerate(t.each):
        prompts.append(first.setdefault(r.prompt.tobytes(), i))
        begins.append(r.begin)
        lengths.append(len(r.at))
    if len(first) < len(prompts):
        columns[PROMPT] = np.array(prompts)[t.row]
    columns["prompt length"] = np.array(begins)[t.row]
    columns["response"] = t.row
    columns["response length"] = np.array(lengths)[t.row]
    return columns


def _overlap(one: Array, other: Array) -> float:
    """Of two sets of tokens [N], the share of both that they have in common."""
    return float((one & other).sum() / (one | other).sum())


def _more(one: _Found, size: Array, left: Array) -> bool:
    """Whether these tokens differ by more nats, too."""
    others = left & ~one.tokens
    return bool(size[one.tokens & left].mean() > TIMES * size[others].mean())


def _found(by: str, x: Array, ranks: Array, left: Array) -> Iterator[_Found]:
    """The best buckets of each kind: one value, a range of values, every n-th, several values."""
    spread = float(ranks[left].std())
    values, which = np.unique(x[left], return_inverse=True)
    if len(values) < 2 or not spread:
        return
    count = np.bincount(which)
    total = np.bincount(which, ranks[left])
    clear = np.where(count >= LEAST, total / (spread * np.sqrt(count)), 0.0)

    def bucket(text: str, tokens: Array, log_tried: float, parts: int = 1) -> _Found:
        tokens = tokens & left
        n = int(tokens.sum())
        high = float(ranks[tokens].sum()) / (spread * np.sqrt(n)) if n >= LEAST else 0.0
        return _Found(by, text, tokens, float(stats.norm.logsf(high)) + log_tried, parts)

    best = values[clear.argmax()]
    yield bucket(str(best), x == best, np.log(len(values)))
    if by in ROWS:
        several = values[clear > stats.norm.isf(0.01 / len(values))]
        ways = special.gammaln(len(values) + 1) - special.gammaln(len(several) + 1)
        ways -= special.gammaln(len(values) - len(several) + 1)
        text = ", ".join(map(str, several[:LISTED]))
        text += f", ... ({len(several)} in all)" if len(several) > LISTED else ""
        yield bucket(text, np.isin(x, several), float(ways), len(several))
    if by == PROMPT:  # their order means nothing
        return
    low, high = _range(total, count)
    inside = (x >= values[low]) & (x <= values[high])
    yield bucket(f"{values[low]} to {values[high]}", inside, 2 * np.log(len(values)))
    if by == "response":
        for n in PERIODS:
            for first in range(n):
                text = f"{first}, {first + n}, {first + 2 * n}, ..."
                yield bucket(text, x % n == first, np.log(sum(PERIODS)))


def _range(total: Array, count: Array) -> tuple[int, int]:
    """The first and the last index of the range with the largest sum."""
    low, high = _largest(total)
    inside = slice(low, high + 1)
    within = total[inside].sum() / count[inside].sum()
    others = (total.sum() - total[inside].sum()) / max(count.sum() - count[inside].sum(), 1)
    return _largest(total - count * (within + others) / 2)  # with no doubtful values at its ends


def _largest(total: Array) -> tuple[int, int]:
    sums = np.cumsum(total)
    before = np.r_[0.0, sums[:-1]]
    last = int((sums - np.minimum.accumulate(before)).argmax())
    return int(before[: last + 1].argmin()), last


def worst(t: Responses, decode: Callable[[int], str] | None = None) -> list[dict[str, Any]]:
    """The tokens that differ most; decode: gives the text of an id."""
    order = np.argsort(-np.abs(t.d), kind="stable")[:WORST]
    order = order[t.d[order] != 0]
    names = ("tokens", "place", "sampler", "trainer")
    columns = {name: t.column(name)[order].tolist() for name in names}
    rows = zip(t.row[order].tolist(), *columns.values(), strict=True)
    found: list[dict[str, Any]] = []
    for row, token, place, sampler, trainer in rows:
        sides = {"sampler": sampler, "trainer": trainer}
        found.append({"response": row, "place": place, "token": token, **sides})
    if decode:
        return [one | {"text": decode(one["token"])} for one in found]
    return found

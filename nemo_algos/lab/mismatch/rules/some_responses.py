"""Some responses are off as a whole and others exact: which they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from nemo_algos.lab.mismatch.picture import Evidence, Picture
from nemo_algos.lab.mismatch.statistics import explained

Array = np.ndarray
ALIKE = 0.9  # of the responses that a guess at which are off gets right
MIXED = 0.05  # of the prompts whose responses are in part off, were it the prompts that are
FAR = 100  # tokens of a prompt: below, positions are exact
LEAST = 0.45  # of a pack of two and more the first response alone is exact


def padded(p: Picture) -> Evidence | None:
    """Responses behind padding: to the longest of all, or of their micro-batch."""
    length, off = p.tokens.length, p.rows_off
    if length is None or not _differ(length, off):
        return None
    whole = length + p.tokens.lengths
    behind = max(_behind(length) + _behind(whole), key=lambda guess: float((guess == off).mean()))
    agree = float((behind == off).mean())
    table = [[int((behind == a)[off == b].sum()) for a in (1, 0)] for b in (1, 0)]
    found = f"in {agree:.0%} of the responses: off behind padding, or exact without"
    test: Any = stats.fisher_exact(table)
    return Evidence(agree, float(test.pvalue), found, p.whole_rows and agree > ALIKE)


def _differ(length: Array, off: Array) -> bool:
    """Whether there are prompts of several lengths, and both exact responses and others."""
    return bool(np.ptp(length) > 0 and 0 < off.mean() < 1)


def _behind(length: Array) -> list[Array]:
    """Shorter than the longest of so many in a row, or than so many tokens."""
    rows = len(length)
    starts = [np.arange(0, rows, size) for size in range(2, min(rows, 65))]
    longest = [np.maximum.reduceat(length, at).repeat(at[1])[:rows] for at in starts]
    return [length < most for most in (*longest, *np.unique(length)[1:])]


def far_prompts(p: Picture) -> Evidence | None:
    """Responses to prompts beyond a length."""
    length, off = p.tokens.length, p.rows_off
    if length is None or not _differ(length, off):
        return None
    agree, least = max((float(((length >= n) == off).mean()), n) for n in np.unique(length)[1:])
    test: Any = stats.mannwhitneyu(length[off], length[~off])
    found = (
        f"in {agree:.0%} of the responses: off behind {least} tokens of a prompt and more, or exact"
    )
    return Evidence(
        agree, float(test.pvalue), found, p.whole_rows and agree > ALIKE and least >= FAR
    )


def whole_prompts(p: Picture) -> Evidence | None:
    """All responses to some prompts, none to the others."""
    prompt = p.tokens.prompt
    if prompt is None or not _repeated(prompt):
        return None
    by_prompt = explained(p.rows_off.astype(float), prompt)
    found = f"whether a response is off: {by_prompt.size:.0%} explained by its prompt; "
    found += f"{float(p.rows_off.mean()):.0%} of the responses are"
    return Evidence(by_prompt.size, by_prompt.p, found, p.whole_rows and by_prompt.size > 0.8)


def _repeated(prompt: Array) -> bool:
    """Whether prompts have several responses."""
    return len(np.unique(prompt)) < len(prompt) / 1.5


def packed(p: Picture) -> Evidence:
    """Exact responses, the first of their packs, stand singly or evenly between others."""
    share, chance = float(p.rows_off.mean()), evenness(p)
    found = (
        f"{share:.0%} of the responses are off, exact ones evenly between them by p {chance:.1g}"
    )
    return Evidence(share, chance, found, p.whole_rows)


def evenness(p: Picture) -> float:
    """The chance of exact responses as single, or as evenly spread, among all."""
    at, n = (~p.rows_off).nonzero()[0], len(p.rows_off)
    k, gaps = len(at), np.diff(at)
    if k < 4 or k == n or np.median(gaps) < 2:
        return 1.0
    runs = int((p.rows_off[1:] != p.rows_off[:-1]).sum()) + 1
    expected = 1 + 2 * k * (n - k) / n
    deviation = np.sqrt((expected - 1) * (expected - 2) / (n - 1))
    single = stats.norm.sf((runs - expected) / deviation)
    low, high = np.ceil(0.75 * np.median(gaps)), 1.25 * np.median(gaps)
    law, even = stats.geom(k / n), int(((gaps >= low) & (gaps <= high)).sum())
    regular = stats.binom.sf(even - 1, len(gaps), law.cdf(high) - law.cdf(low - 1))
    return float(min(1.0, 2 * min(single, regular)))


def of_no_prompt(p: Picture) -> Evidence | None:
    """Most responses, but not all to a prompt: exact are the first of packs of any size."""
    prompt, off = p.tokens.prompt, p.rows_off
    if prompt is None or not _repeated(prompt):
        return None
    count = np.bincount(prompt)
    share = np.bincount(prompt, off)[count > 1] / count[count > 1]
    mixed = int(((share > 0) & (share < 1)).sum())
    found = f"{float(off.mean()):.0%} of the responses are off; "
    found += f"of {mixed} of {len(share)} prompts some are and some not"
    chance = float(stats.binom.sf(mixed - 1, len(share), MIXED))
    return Evidence(float(off.mean()), chance, found, p.whole_rows and off.mean() > LEAST)


def whole_responses(p: Picture) -> Evidence:
    """Some responses, from their first token on."""
    by_row = explained(p.off.astype(float), p.some.row)
    found = f"whether a token is off: {by_row.size:.0%} explained by its response; "
    found += f"{float(p.rows_off.mean()):.0%} of the responses are"
    return Evidence(by_row.size, by_row.p, found, p.whole_rows)

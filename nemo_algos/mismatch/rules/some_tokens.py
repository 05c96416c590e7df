"""Some tokens are off and others exact: which? And what goes with the version of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from nemo_algos.mismatch.picture import SIGNIFICANT, Evidence, Picture
from nemo_algos.mismatch.statistics import explained


def certain_ids(p: Picture) -> Evidence:
    """Which token it is decides; where others follow it, of the first that is off in a response."""
    looks = [(p.by_id, p.token[p.off], 0.8)]
    off, token = p.onset
    if off.sum() > 4:
        looks.append((explained(off.astype(float), token), token[off], 0.6))
    by_id, token, least = max(looks, key=lambda look: look[0].size - look[2])
    ids = np.unique(token)
    some = ", ".join(map(str, ids[:6])) + (", ..." if len(ids) > 6 else "")
    found = f"whether a token is off: {by_id.size:.0%} explained by its id ({some})"
    return Evidence(by_id.size, by_id.p, found, p.two and by_id.size > least)


def aged(p: Picture) -> Evidence | None:
    """The older the weights that sampled, the larger."""
    if not p.ages_differ:
        return None
    found = f"rank correlation of a response's level with the weights' age {p.by_age.size:.2f}"
    return Evidence(p.by_age.size, p.by_age.p, found, p.by_age.size > 0.25)


def grown(p: Picture) -> Evidence | None:
    """The later the version, the larger: an adapter begins as nothing."""
    version = p.tokens.version
    if version is None or np.ptp(version) == 0:
        return None
    found = f"rank correlation of a response's level with the version {p.by_version.size:.2f}"
    return Evidence(p.by_version.size, p.by_version.p, found, p.by_version.size > 0.25)


def padded(p: Picture) -> Evidence | None:
    """Responses behind padding."""
    pads = p.tokens.pads
    if pads is None or np.ptp(pads) == 0:
        return None
    behind, off = pads > 0, p.rows_off
    agree = float((behind == off).mean())
    table = [[int((behind == a)[off == b].sum()) for a in (1, 0)] for b in (1, 0)]
    found = f"in {agree:.0%} of the responses: off behind padding, or exact without"
    test: Any = stats.fisher_exact(table)
    return Evidence(agree, float(test.pvalue), found, p.whole_rows and agree > 0.9)


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


def certain_places(p: Picture) -> Evidence:
    """Which place it is decides."""
    found = f"whether a token is off: {p.by_place.size:.0%} explained by its place"
    return Evidence(p.by_place.size, p.by_place.p, found, p.two and p.by_place.size > 0.6)


def whole_responses(p: Picture) -> Evidence:
    """Some responses, from their first token on."""
    by_row = explained(p.off.astype(float), p.row)
    found = f"whether a token is off: {by_row.size:.0%} explained by its response; "
    found += f"{float(p.rows_off.mean()):.0%} of the responses are"
    return Evidence(by_row.size, by_row.p, found, p.whole_rows)


def template(p: Picture) -> Evidence:
    """All responses, most at their first token, by a factor of e and more: other words before."""
    found = f"the first token's odds move by {p.first:.2g} nats, and it fades ({p.fading.size:.2f})"
    return Evidence(p.first, p.fading.p, found, begins_so(p) and p.first > 1)


def first_places(p: Picture) -> Evidence:
    """All responses, and less the further on."""
    found = f"rank correlation of a token's level with its place {p.fading.size:.2f}"
    return Evidence(p.fading.size, p.fading.p, found, begins_so(p))


def begins_so(p: Picture) -> bool:
    """Whether every response is off where it begins and then recovers."""
    return p.two and p.rows_off.mean() > 0.95 and p.fading.size < -0.25


def scattered(p: Picture) -> Evidence:
    """Single tokens, and in part what follows them."""
    share, size = float(p.off.mean()), np.abs(p.moved)
    far = int((size > max(1e-3, 10 * float(np.median(size)))).sum())
    chance = float(stats.binom.sf(far - 1, len(size), SIGNIFICANT / 10))
    found = f"{far / len(size):.1%} of the tokens are ten times further off than the median is"
    return Evidence(share, chance, found, p.two)

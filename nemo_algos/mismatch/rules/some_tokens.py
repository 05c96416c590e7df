"""Some tokens are off and others exact: which? And what goes with the version of the weights."""

from __future__ import annotations

import numpy as np
from scipy import stats

from nemo_algos.mismatch.picture import SIGNIFICANT, Evidence, Picture
from nemo_algos.mismatch.statistics import correlation, explained


def certain_ids(p: Picture) -> Evidence | None:
    """Which token it is decides; where others follow it, of the first that is off in a response."""
    if not p.two:
        return None
    for off, token, least in ((p.off, p.token, 0.8), (*p.onset, 0.6)):
        by_id = explained(off.astype(float), token)
        if by_id.size > least and off.sum() > 4:
            ids = np.unique(token[off])
            some = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
            found = f"which token it is decides ({by_id.size:.0%} explained): ids {some}"
            return Evidence(by_id.size, by_id.p, found)
    return None


def aged(p: Picture) -> Evidence | None:
    """The older the weights that sampled, the larger."""
    if p.by_age.size < 0.25:
        return None
    found = f"grows with the age of the weights (rank correlation {p.by_age.size:.2f})"
    return Evidence(p.by_age.size, p.by_age.p, found)


def grown(p: Picture) -> Evidence | None:
    """The later the version, the larger: an adapter begins as nothing."""
    if p.by_version.size < 0.25:
        return None
    found = f"grows with the version of the weights (rank correlation {p.by_version.size:.2f})"
    return Evidence(p.by_version.size, p.by_version.p, found)


def padded(p: Picture) -> Evidence | None:
    """Responses behind padding."""
    pads = p.tokens.pads
    if not p.whole_rows or pads is None or np.ptp(pads) == 0:
        return None
    behind = pads > 0
    agree = float((behind == p.rows_off).mean())
    table = [[int((behind == a)[p.rows_off == b].sum()) for a in (1, 0)] for b in (1, 0)]
    if agree < 0.9:
        return None
    found = f"off behind padding, exact without ({agree:.0%} of the responses agree)"
    return Evidence(agree, float(stats.fisher_exact(table).pvalue), found)


def packed(p: Picture) -> Evidence | None:
    """Exact responses, the first of their packs, stand singly or evenly between others."""
    if not p.whole_rows:
        return None
    share = float(p.rows_off.mean())
    found = f"{share:.0%} of the responses are off; the exact ones stand evenly between them"
    return Evidence(share, _evenly(p), found)


def _evenly(p: Picture) -> float:
    """The chance of exact responses as single, or as evenly spread, among all."""
    at, n = (~p.rows_off).nonzero()[0], len(p.rows_off)
    k, gaps = len(at), np.diff(at)
    if k < 4 or np.median(gaps) < 2:
        return 1.0
    runs = int((p.rows_off[1:] != p.rows_off[:-1]).sum()) + 1
    expected = 1 + 2 * k * (n - k) / n
    deviation = np.sqrt((expected - 1) * (expected - 2) / (n - 1))
    single = stats.norm.sf((runs - expected) / deviation)
    low, high = np.ceil(0.75 * np.median(gaps)), 1.25 * np.median(gaps)
    law, even = stats.geom(k / n), int(((gaps >= low) & (gaps <= high)).sum())
    regular = stats.binom.sf(even - 1, len(gaps), law.cdf(high) - law.cdf(low - 1))
    return float(min(1.0, 2 * min(single, regular)))


def certain_places(p: Picture) -> Evidence | None:
    """Which place it is decides."""
    by_place = explained(p.off.astype(float), p.place)
    if not p.two or by_place.size < 0.6:
        return None
    off = np.unique(p.place[p.off])
    found = f"the place decides ({by_place.size:.0%} explained): {off.min()} to {off.max()}"
    return Evidence(by_place.size, by_place.p, found)


def whole_responses(p: Picture) -> Evidence | None:
    """Some responses, from their first token on."""
    if not p.whole_rows:
        return None
    share, by_row = float(p.rows_off.mean()), explained(p.off.astype(float), p.row)
    found = f"{share:.0%} of the responses are off from their first token, the others are exact"
    return Evidence(share, by_row.p, found)


def first_places(p: Picture) -> Evidence | None:
    """All responses, and less the further on."""
    fading = correlation(p.place.astype(float), p.level)
    if not p.two or p.rows_off.mean() < 0.95 or fading.size > -0.25:
        return None
    found = f"every response is off where it begins, and recovers (by place {fading.size:.2f})"
    return Evidence(fading.size, fading.p, found)


def template(p: Picture) -> Evidence | None:
    """The same, by a factor of e and more at the first token: other words right before it."""
    return first_places(p) if p.first > 1 else None


def scattered(p: Picture) -> Evidence | None:
    """Single tokens, and in part what follows them."""
    if not p.two:
        return None
    share, size = float(p.off.mean()), np.abs(p.moved)
    far = int((size > max(1e-3, 10 * float(np.median(size)))).sum())
    chance = float(stats.binom.sf(far - 1, len(size), SIGNIFICANT / 10))
    where = f"scattered over {float(p.rows_off.mean()):.0%} of the responses"
    return Evidence(share, chance, f"{share:.1%} of the tokens are off, {where}")

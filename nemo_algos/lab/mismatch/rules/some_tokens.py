"""Some tokens are off and others exact: which? And what goes with the version of the weights."""

from __future__ import annotations

import numpy as np
from scipy import stats

from nemo_algos.lab.mismatch.picture import SIGNIFICANT, Evidence, Picture
from nemo_algos.lab.mismatch.statistics import explained


def certain_ids(p: Picture) -> Evidence:
    """Which token it is decides; where others follow it, of the first that is off in a response."""
    looks = [(p.by_id, p.some.token[p.off], 0.8)]
    off, token = _onset(p)
    if off.sum() > 4:
        looks.append((explained(off.astype(float), token), token[off], 0.6))
    by_id, token, least = max(looks, key=lambda look: look[0].size - look[2])
    ids = np.unique(token)
    some = ", ".join(map(str, ids[:6])) + (", ..." if len(ids) > 6 else "")
    found = f"whether a token is off: {by_id.size:.0%} explained by its id ({some})"
    return Evidence(by_id.size, by_id.p, found, p.two and by_id.size > least)


def _onset(p: Picture) -> tuple[np.ndarray, np.ndarray]:
    """Off and token [n] of those up to the first that is off, where that is not the first."""
    row, new = p.some.row, np.diff(p.some.row, prepend=-1) != 0
    before = np.cumsum(p.off) - p.off  # of all tokens
    before -= np.maximum.accumulate(np.where(new, before, 0))  # of the response's
    some = (before == 0) & ~np.isin(row, row[new & p.off])
    return p.off[some], p.some.token[some]


def aged(p: Picture) -> Evidence | None:
    """The older the weights that sampled, the larger."""
    if p.tokens.age is None or np.ptp(p.tokens.age) == 0:
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


def certain_places(p: Picture) -> Evidence:
    """Which place it is decides."""
    found = f"whether a token is off: {p.by_place.size:.0%} explained by its place"
    return Evidence(p.by_place.size, p.by_place.p, found, p.two and p.by_place.size > 0.6)


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
    share, size = float(p.off.mean()), np.abs(p.some.moved)
    far = int((size > max(1e-3, 10 * float(np.median(size)))).sum())
    chance = float(stats.binom.sf(far - 1, len(size), SIGNIFICANT / 10))
    found = f"{far / len(size):.1%} of the tokens are ten times further off than the median is"
    return Evidence(share, chance, found, p.two)

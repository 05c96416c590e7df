"""What cannot be mistaken: the same numbers a place away, one sign, a function of the odds."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from nemo_algos.lab.mismatch.picture import Evidence, Picture
from nemo_algos.lab.mismatch.statistics import correlation

NOISE = 1e-5  # nats, of float32
LINE = 1000  # tokens that a line is laid through
RARER = 60.0  # times rarer than all that is cut: no filter keeps such a token


def a_place_away(p: Picture) -> Evidence:
    """The sampler's numbers are the trainer's, a place or two away."""
    shares = {lag: float(_agrees(p, lag).mean()) for lag in (1, -1, 2, -2)}
    lag = max(shares, key=shares.__getitem__)
    share, rows = shares[lag], len(p.tokens.lengths)
    found = (
        f"in {share:.0%} of the responses the trainer at t says what the sampler does at t{-lag:+d}"
    )
    chance = float(stats.binom.sf(round(share * rows) - 1, rows, 0.01))
    return Evidence(share, chance, found, share > 0.05)


def _agrees(p: Picture, lag: int) -> np.ndarray:
    """Responses [R] whose numbers agree five times better so many places away than in place."""
    t = p.tokens
    same = np.roll(t.row, lag) == t.row
    away = t.per_row(np.abs(t.trainer - np.roll(t.sampler, lag)), same)
    return (away < 0.2 * t.per_row(np.abs(t.d), same)) & (t.lengths > 7)


def larger_softmax(p: Picture) -> Evidence:
    """One side's softmax has entries beyond the other's, or more of them."""
    more, chance = one_sign(p)
    extra, side = float(np.expm1(np.abs(p.tokens.d)).mean()), "trainer" if more > 0 else "sampler"
    found = f"{abs(more):.1%} of the tokens are likelier to the other than to the {side}"
    found += f", by {extra:.2%} on average"
    fits = one_sided(p) and (more < 0 or beyond_cut(p) or evenly(p))
    return Evidence(extra, chance, found, fits)


def cut(p: Picture) -> Evidence:
    """The sampler shares out what it has cut: no token is less likely to it than to the trainer."""
    more, chance = one_sign(p)
    kept, sure = float(np.exp(p.tokens.d.min())), sure_alone(p)
    found = f"{max(more, 1 - abs(more)):.1%} of the tokens are likelier to the sampler"
    found += f"; it keeps {kept:.3f} of the mass or more; {sure:.0%} are certain to it alone"
    return Evidence(kept, chance, found, one_sided(p) and more > 0)


def one_sign(p: Picture) -> tuple[float, float]:
    """The share of tokens whose d has the commoner sign, below 0 where that is +; its chance."""
    d = p.tokens.d[np.abs(p.tokens.d) > NOISE]
    if not len(d):
        return 0.0, 1.0
    likelier = float((d < 0).mean())
    rows = p.tokens.per_row(p.tokens.d, np.abs(p.tokens.d) > NOISE)
    below = int((rows[~np.isnan(rows)] < 0).sum())
    chance = float(stats.binomtest(below, int((~np.isnan(rows)).sum())).pvalue)
    return (likelier if likelier >= 0.5 else likelier - 1), chance


def one_sided(p: Picture) -> bool:
    """Whether d has one sign, but for noise: a sum over other entries, not other logits.

    Nor is it of certain ids alone.
    """
    d = p.tokens.d
    moved = float((np.abs(d) > NOISE).mean())
    some, by_id = moved > 0.3, p.by_id.size > 0.8 and moved < 0.9
    whole = abs(float(d.sum())) > 0.97 * float(np.abs(d).sum())
    return some and whole and not by_id and np.abs(d).max() < 5 and abs(one_sign(p)[0]) > 0.85


def sure_alone(p: Picture) -> float:
    """The share of tokens that are certain to the sampler and not to the trainer: top-p's."""
    return float(((p.tokens.sampler > -1e-6) & (p.tokens.trainer < -1e-4)).mean())


def evenly(p: Picture) -> bool:
    """Whether the share goes with the entropy, and by less than in proportion.

    What lies beyond the k likeliest vanishes the faster the surer a model is; and top-p leaves
    tokens certain.
    """
    share, entropy = -np.expm1(np.minimum(p.tokens.d, 0)), p.tokens.entropy
    if entropy is None or sure_alone(p) > 0.01:
        return False
    some = (share > NOISE) & (entropy > NOISE) & np.isfinite(entropy)
    x, y = np.log(entropy[some]), np.log(share[some])
    if correlation(x, y).size < 0.8:
        return False
    slope: Any = stats.siegelslopes(y[:LINE], x[:LINE])
    return float(slope.slope) < 0.85


def beyond_cut(p: Picture) -> bool:
    """Whether tokens were drawn that are far rarer than what is cut: then nothing was.

    Not asked where top-p shows: tokens certain to the sampler alone, or one mass cut over and over.
    """
    mass = -np.expm1(np.minimum(p.tokens.d, 0))
    some = mass > NOISE
    if not some.any() or sure_alone(p) > 0.01 or (mass > 0.9 * mass.max()).mean() > 0.3:
        return False
    return float((np.log(mass[some]) - p.tokens.trainer[some]).max()) > np.log(RARER)


def tempered(p: Picture) -> Evidence:
    """The change is a function of the odds, and turns its sign with them."""
    slope = correlation(p.some.odds, p.some.moved)
    trainer, sampler = (
        np.abs(p.some.odds + p.some.moved / 2),
        np.abs(p.some.odds - p.some.moved / 2),
    )
    factor = float(np.median(sampler) / max(np.median(trainer), 1e-9))
    found = f"{p.smooth.size:.0%} of the change is a function of the odds (rank correlation "
    found += f"{slope.size:.2f}); the sampler's log-odds are the trainer's x {factor:.2f}"
    fits = p.smooth.size > 0.8 and abs(slope.size) > 0.8
    return Evidence(p.smooth.size, p.smooth.p, found, fits)

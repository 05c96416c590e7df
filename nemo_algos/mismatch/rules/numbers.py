"""What cannot be mistaken: the same numbers a place away, one sign, a function of the odds."""

from __future__ import annotations

import numpy as np
from scipy import stats

from nemo_algos.mismatch.picture import SIGNIFICANT, Evidence, Picture
from nemo_algos.mismatch.statistics import correlation, explained

NOISE = 1e-5  # nats, of float32
RARER = 60.0  # times rarer than all that is cut: no filter keeps such a token


def a_place_away(p: Picture) -> Evidence | None:
    """The sampler's numbers are the trainer's, a place or two away."""
    shares = {lag: float(_agrees(p, lag).mean()) for lag in (1, -1, 2, -2)}
    lag = max(shares, key=shares.__getitem__)
    rows = len(p.tokens.lengths)
    chance = float(stats.binom.sf(round(shares[lag] * rows) - 1, rows, 0.01))
    if shares[lag] < 0.05 or chance > SIGNIFICANT:
        return None
    what = f"the trainer's log-prob at t is the sampler's at t{-lag:+d}"
    return Evidence(shares[lag], chance, f"in {shares[lag]:.0%} of the responses {what}")


def _agrees(p: Picture, lag: int) -> np.ndarray:
    """Responses [R] whose numbers agree five times better so many places away than in place."""
    t = p.tokens
    same = np.roll(t.row, lag) == t.row
    away = t.per_row(np.abs(t.trainer - np.roll(t.sampler, lag)), same)
    return (away < 0.2 * t.per_row(np.abs(t.d), same)) & (t.lengths > 3)


def larger_softmax(p: Picture) -> Evidence | None:
    """One side's softmax has entries beyond the other's, or more of them."""
    one = _one_sign(p)
    if one is None or (one.effect < 0 and not _beyond_cut(p)):
        return None
    extra, side = float(np.expm1(np.abs(p.tokens.d)).mean()), "trainer"
    if one.effect > 0:
        side = "sampler"
    found = f"{one.found}: the {side}'s softmax holds {extra:.1%} more than the other's"
    return Evidence(extra, one.p, found)


def cut(p: Picture) -> Evidence | None:
    """The sampler shares out what it has cut: no token is less likely to it than to the trainer."""
    one = _one_sign(p)
    if one is None or one.effect > 0:
        return None
    kept, sure = float(np.exp(p.tokens.d.min())), _sure_alone(p)
    more = f"; {sure:.0%} of the tokens are certain to the sampler alone" if sure > 0.01 else ""
    return Evidence(kept, one.p, f"{one.found}, which keeps {kept:.3f} of the mass or more{more}")


def _one_sign(p: Picture) -> Evidence | None:
    """Whether d of every token has one sign: a sum over other entries, not other logits."""
    d = p.tokens.d[np.abs(p.tokens.d) > NOISE]
    if len(d) < 0.3 * len(p.tokens.d) or np.abs(d).max() > 5 or _by_id(p) > 0.8:
        return None
    positive = float((d > 0).mean())
    if 0.005 < positive < 0.995:
        return None
    sign, side = (1.0, "less") if positive > 0.5 else (-1.0, "more")
    found = f"{max(positive, 1 - positive):.1%} of the tokens are {side} likely to the sampler"
    return Evidence(sign, 0.5 ** (len(p.tokens.lengths) - 1), found)


def _by_id(p: Picture) -> float:
    return explained(p.off.astype(float), p.token).size


def _sure_alone(p: Picture) -> float:
    return float(((p.tokens.sampler > -1e-6) & (p.tokens.trainer < -1e-4)).mean())


def _beyond_cut(p: Picture) -> bool:
    """Whether tokens were drawn that are far rarer than what is cut: then nothing was.

    Not asked where top-p shows: tokens certain to the sampler alone, or one mass cut over and over.
    """
    mass = -np.expm1(np.minimum(p.tokens.d, 0))
    some = mass > NOISE
    one_mass = float((mass > 0.9 * mass.max()).mean())
    rarest = float((np.log(mass[some]) - p.tokens.trainer[some]).max())
    return _sure_alone(p) < 0.01 and one_mass < 0.3 and rarest > np.log(RARER)


def tempered(p: Picture) -> Evidence | None:
    """The change is a function of the odds, and turns its sign with them."""
    slope = correlation(p.odds, p.moved)
    if p.smooth.size < 0.8 or abs(slope.size) < 0.8 or p.smooth.p > SIGNIFICANT:
        return None
    trainer, sampler = np.abs(p.odds + p.moved / 2), np.abs(p.odds - p.moved / 2)
    factor = float(np.median(sampler) / np.median(trainer))
    side = "sharper" if slope.size < 0 else "flatter"
    what = f"{p.smooth.size:.0%} of the change is a function of the odds"
    return Evidence(factor, p.smooth.p, f"{what}: the sampler is {side}, log-odds x {factor:.2f}")

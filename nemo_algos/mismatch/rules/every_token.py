"""Every token is off: the level, and its relation to place, token and odds, decide.

The thresholds are calibrated on planted mismatches (docs/mismatch.md says on which). Noise in the
logits (rounding) moves likely and rare tokens' odds alike, noise in hidden states the rare ones'
more; training moves single tokens in every context.
"""

from __future__ import annotations

import numpy as np

from nemo_algos.mismatch.picture import Evidence, Picture

ROUNDING = 0.35  # nats of the odds; FP8 weights of the toy models stay below
BF16 = 0.008  # nats of the odds: less is rounding, whatever its look
UPDATE = 1.2  # nats of the odds: more is no one step


def fading(p: Picture) -> Evidence | None:
    """Largest where a response begins."""
    if p.trend.size > -0.25:
        return None
    found = f"largest where a response begins (rank correlation with the place {p.trend.size:.2f})"
    return Evidence(p.trend.size, p.trend.p, found)


def growing(p: Picture) -> Evidence | None:
    """The further on in a response, the larger."""
    if p.trend.size < 0.15 or (p.start > -0.8 and p.by_token.size > 0.04):
        return None
    found = f"grows with the place in a response (rank correlation {p.trend.size:.2f})"
    return Evidence(p.trend.size, p.trend.p, found)


def other_tokens(p: Picture) -> Evidence | None:
    """The trainer's log-probs have nothing to do with the sampler's, or hardly."""
    median, level = p.typical * p.spread, float(p.tokens.d.mean())
    unlike = p.agreement.size < 0.2 and level < -1
    if not unlike and (median < 6 or p.smooth.size > 0.4):
        return None
    found = f"log-probs as if of other tokens (rank correlation {p.agreement.size:.2f})"
    return Evidence(p.agreement.size, p.loud, f"{found}, {level:.1f} nats apart")


def template(p: Picture) -> Evidence | None:
    """Largest where a response begins, and there by a factor of e and more."""
    return fading(p) if p.first > 1 else None


def other_prompt(p: Picture) -> Evidence | None:
    """Very large, and no token or odds in particular."""
    if p.spread < 4.5 or p.by_token.size > 0.24 or p.smooth.size > 0.4:
        return None
    found = f"as after another prompt: odds move by {p.spread:.1f} nats, of no token in particular"
    return Evidence(p.spread, p.loud, found)


def of_no_token(p: Picture) -> Evidence | None:
    """In hidden states, and of no token: attention looks elsewhere."""
    if p.by_token.size > 0.04 or p.rare.size > -0.25:
        return None
    found = f"rare tokens move more (rank correlation {p.rare.size:.2f}), none in particular"
    return Evidence(p.rare.size, p.rare.p, found)


def updated(p: Picture) -> Evidence | None:
    """Single tokens in every context, likely or rare, as far as an update goes."""
    known = p.tokens.age is not None and np.ptp(p.tokens.age) > 0
    if known or p.spread > UPDATE or p.by_token.size < 0.2:
        return None
    if p.typical < 0.5 and p.rare.size < -0.22:
        return None
    return Evidence(p.by_token.size, p.by_token.p, _of_token(p))


def rounded(p: Picture) -> Evidence | None:
    """Small, of no token, of likely and rare ones alike."""
    hidden = p.rare.size < -0.22 and p.typical < 0.55
    if p.spread > BF16 and (p.spread > ROUNDING or p.by_token.size > 0.16 or hidden):
        return None
    found = f"noise of {p.spread:.3f} nats on every token's odds, whatever token, odds or place"
    return Evidence(p.spread, p.loud, found)


def adapted(p: Picture) -> Evidence | None:
    """Single tokens in every context, with the tails of a change within the layers."""
    if p.by_token.size < 0.21 or p.smooth.size > 0.6:
        return None
    return Evidence(p.by_token.size, p.by_token.p, _of_token(p))


def damaged(p: Picture) -> Evidence | None:
    """What is left: large, of no token."""
    return Evidence(p.spread, p.loud, _of_token(p))


def _of_token(p: Picture) -> str:
    level = f"odds move by {p.spread:.2f} nats (median {p.typical * p.spread:.2f})"
    return f"{level}, {p.by_token.size:.0%} of it a token's own in every context"

"""Every token is off: the level, and its relation to place, token and odds, decide.

The thresholds are calibrated on planted mismatches (docs/mismatch.md says on which). Noise in the
logits (rounding) moves likely and rare tokens' odds alike, noise in hidden states the rare ones'
more; training moves single tokens in every context.
"""

from __future__ import annotations

from nemo_algos.lab.mismatch.picture import Evidence, Picture

ROUNDING = 0.35  # nats of the odds; FP8 weights of the toy models stay below
BF16 = 0.01  # nats of the odds: less is rounding, whatever its look
UPDATE = 1.2  # nats of the odds: more is no one step
CERTAIN = 0.1  # the same: above, certain tokens move more than training moves them
FADING = 0.3  # factors of 10
HIDDEN = -0.22  # rank correlation of level and odds: below, the noise is in hidden states


def template(p: Picture) -> Evidence:
    """Largest where a response begins, and there by a factor of e and more."""
    found = f"the first token's odds move by {p.first:.2g} nats, and it fades ({p.trend.size:.2f})"
    return Evidence(p.first, p.trend.p, found, p.trend.size < -0.25 and p.first > 1)


def stale(p: Picture) -> Evidence:
    """Fading in a response, and the larger the longer its prompt: all of them were cached."""
    found = f"{_by_place(p)}; with the length of its prompt {p.by_length.size:.2f}"
    fits = p.by_length.size > 0.25 and (p.trend.size < -0.1 or p.early.size > FADING)
    return Evidence(p.by_length.size, p.trend.p, found, fits)


def fading(p: Picture) -> Evidence:
    """Largest where a response or its prompt begins: the longer ago, the less it matters."""
    found = f"where responses begin {10**p.early.size:.2g} times the level of their second half; "
    found += (
        f"rank correlation with the place from the prompt's first token on {p.from_start.size:.2f}"
    )
    effect = p.early if p.early.size > FADING else p.from_start
    fits = p.early.size > FADING or p.from_start.size < -0.25
    return Evidence(effect.size, effect.p, found, fits)


def growing(p: Picture) -> Evidence:
    """The further on in a response, the larger."""
    fits = p.trend.size > 0.15 and (p.start < -0.8 or p.by_token.size < 0.04)
    return Evidence(p.trend.size, p.trend.p, _by_place(p), fits)


def _by_place(p: Picture) -> str:
    what = "rank correlation of the level with the place, beyond token and odds"
    return f"{what}, {p.trend.size:.2f}"


def heavy(p: Picture) -> Evidence:
    """A few tokens far off over noise on all, and of no token."""
    found = f"the median change is {p.typical:.2g} of the root mean square (.67 of normal noise)"
    return Evidence(p.typical, p.loud, found, p.typical < 0.18 and p.by_token.size < 0.1)


def other_tokens(p: Picture) -> Evidence:
    """The trainer's log-probs have nothing to do with the sampler's, or hardly."""
    median, level = p.typical * p.spread, float(p.tokens.d.mean())
    unlike = p.agreement.size < 0.2 and level < -1
    found = f"the two sides' log-probs: rank correlation {p.agreement.size:.2f}, {level:.2g} nats "
    fits = unlike or (median > 6 and p.smooth.size < 0.4)
    return Evidence(p.agreement.size, p.loud, found + "apart", fits)


def other_prompt(p: Picture) -> Evidence:
    """Very large, and of no odds, nor of tokens unless the weights are known to be of one age."""
    token = 0.3 if p.tokens.age is None else 0.6
    fits = p.spread > 3 and p.by_token.size < token and p.smooth.size < 0.4
    return Evidence(p.spread, p.loud, _of_odds(p), fits)


def other_beginning(p: Picture) -> Evidence:
    """Very large, and larger at the first token."""
    found = f"odds move by {p.spread:.2g} nats, those of first tokens by {p.first:.2g} (median)"
    return Evidence(p.first, p.loud, found, p.spread > 2.5 and p.first > 1 and p.start > 0.22)


def other_template(p: Picture) -> Evidence:
    """The same, and it is another token altogether that the trainer expects first."""
    return (e := other_beginning(p))._replace(fits=e.fits and p.first > 6 and p.start > 0.75)


def other_context(p: Picture) -> Evidence:
    """Large, and of no token and no odds: not the network but what it is shown."""
    fits = p.spread > 1 and p.by_token.size < 0.13 and p.smooth.size < 0.05
    return Evidence(p.spread, p.loud, _of_odds(p), fits)


def of_no_token(p: Picture) -> Evidence:
    """In hidden states, and of no token: attention looks elsewhere."""
    hidden = p.by_token.size < 0.025 and p.rare.size < -0.25
    large = p.by_token.size < 0.055 and p.spread > ROUNDING and p.smooth.size < 0.1
    fits = p.spread > BF16 and (hidden or large)
    return Evidence(p.by_token.size, p.loud, _of_token(p), fits)


def updated(p: Picture) -> Evidence:
    """Known to be of older weights, about as old all; else single tokens, likely or rare."""
    age = p.tokens.age
    if age is not None and 0 < age.max() <= 2 * age.min():
        found = f"all responses are of weights {age.min():.0f} versions old and more"
        return Evidence(float(age.min()), p.loud, found, True)
    alike = p.typical > 0.55 or HIDDEN < p.rare.size < CERTAIN
    fits = age is None and p.spread < UPDATE and p.by_token.size > 0.2 and alike
    return Evidence(p.by_token.size, p.by_token.p, _of_token(p), fits)


def rounded(p: Picture) -> Evidence:
    """Small, of no token, of likely and rare ones alike."""
    alike = p.rare.size > HIDDEN or p.typical > 0.55
    alike &= p.smooth.size < 0.1
    fits = p.spread < ROUNDING and p.by_token.size < 0.2 and alike
    return Evidence(p.spread, p.loud, _of_token(p), fits or p.spread < BF16)


def adapted(p: Picture) -> Evidence:
    """Single tokens in every context, with the tails of a change within the layers."""
    more = p.by_token.size > (0.21 if p.rare.size < CERTAIN else 0.28)
    fits = more and p.smooth.size < 0.55
    return Evidence(p.by_token.size, p.by_token.p, _of_token(p), fits)


def damaged(p: Picture) -> Evidence:
    """What is left: large, of no token."""
    return Evidence(p.spread, p.loud, _of_token(p), True)


def _of_odds(p: Picture) -> str:
    share = f"{p.by_token.size:.0%} of it the token's, {p.smooth.size:.0%} of the odds"
    return f"odds move by {p.spread:.2g} nats, {share}"


def _of_token(p: Picture) -> str:
    level = f"odds move by {p.spread:.2g} nats (median {p.typical * p.spread:.2g})"
    share = f"{p.by_token.size:.0%} of it the token's in every context"
    return f"{level}, {share}, rank correlation with the odds {p.rare.size:.2f}"

"""The verdict on some dumps: a cause with its evidence, clean, unknown, or not enough tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_algos.engines.mismatch.dump import Dump
from nemo_algos.lab.mismatch.causes import CAUSES, Cause
from nemo_algos.lab.mismatch.picture import Evidence, Picture, picture
from nemo_algos.lab.mismatch.rules import RULES
from nemo_algos.lab.mismatch.statistics import mean
from nemo_algos.lab.mismatch.tokens import Tokens, gather

TOKENS, RESPONSES, UNSURE = 200, 8, 100  # fewer tell nothing
LEFT_OVER = ("routing", "bad_layer")
CLEAN = 1e-4  # nats: mean |d| of float32 by another route; single tokens 20 times
SURPRISE = 1e-6  # chance that tokens as surprising are of the recorded distribution
OTHERWISE = {
    "clean": Cause("clean", "", ""),
    "few": Cause(
        "not enough tokens",
        "",
        f"dump more steps: {TOKENS} tokens of {RESPONSES} responses are the least",
    ),
    "unknown": Cause(
        "unknown cause", "", "dump more steps, with weights_version and prompt_length"
    ),
}


@dataclass(frozen=True)
class Diagnosis:
    """name: of `CAUSES`, or clean, few, unknown. tests: of each cause, where there are tokens."""

    name: str
    found: str
    tests: dict[str, Evidence]
    tokens: Tokens

    @property
    def others(self) -> list[str]:
        """Further causes that fit as well; not what fits wherever nothing else does."""
        named = (self.name, *LEFT_OVER)
        return [name for name, test in self.tests.items() if test.holds and name not in named]

    @property
    def cause(self) -> Cause:
        """What it is, and what to do next."""
        return (CAUSES | OTHERWISE)[self.name]

    def numbers(self) -> dict[str, Any]:
        """For scripts, of Python's own types."""
        size = np.abs(self.tokens.d)
        return {
            "verdict": self.name,
            "title": self.cause.title,
            "found": self.found,
            "next_step": self.cause.next_step,
            "tokens": len(size),
            "responses": len(self.tokens.lengths),
            "not_finite": self.tokens.lost,
            "mean": float(size.mean()),
            "max": float(size.max()),
            "others": self.others,
            "tests": {k: e._asdict() | {"fits": bool(e.fits)} for k, e in self.tests.items()},
        }


def diagnose(dumps: Sequence[Dump]) -> Diagnosis:
    """What explains the difference of sampler and trainer in all of them together."""
    tokens = gather(dumps)
    if len(tokens.d) < TOKENS or len(tokens.lengths) < RESPONSES:
        count = f"{len(tokens.d)} tokens of {len(tokens.lengths)} responses tell no cause"
        return Diagnosis("few", count, {}, tokens)
    size = np.abs(tokens.d)
    if size.mean() < CLEAN and size.max() < 20 * CLEAN:
        return _exact(tokens)
    if tokens.unsure.sum() < UNSURE:
        count = f"of {len(size)} tokens only {tokens.unsure.sum()} leave a doubt to compare"
        return Diagnosis("few", count, {}, tokens)
    return _named(picture(tokens))


def _named(p: Picture) -> Diagnosis:
    """Of each cause the first look that holds, else the first that could be tested."""
    looks = [(name, evidence) for name, rule in RULES if (evidence := rule(p))]
    holding = [(name, evidence) for name, evidence in looks if evidence.holds]
    first = dict(reversed(looks)) | dict(reversed(holding))
    tests = {name: first[name] for name, _ in looks}
    if not holding:
        return Diagnosis("unknown", "no look of a cause is significant", tests, p.tokens)
    name, evidence = holding[0]
    return Diagnosis(name, evidence.found, tests, p.tokens)


def _exact(tokens: Tokens) -> Diagnosis:
    """Log-probs that agree, of tokens that need not have been drawn from them."""
    size = np.abs(tokens.d)
    found = f"mean |d| {size.mean():.1e}, largest {size.max():.1e} nats: rounding of float32"
    if size.max() == 0:
        found = "the two are the same numbers: compared with itself, or a copy (bypass mode)"
    if tokens.entropy is not None:
        surprise = mean(tokens.per_row(-tokens.sampler - tokens.entropy))
        if surprise.p < SURPRISE:
            side = "less" if surprise.size < 0 else "more"
            text = f"both agree, but the tokens are {abs(surprise.size):.3f} nats {side} surprising"
            text += " than their entropy: drawn at another temperature, or with top-p or top-k"
            test = Evidence(surprise.size, surprise.p, text, fits=True)
            return Diagnosis("temperature", text, {"temperature": test}, tokens)
    return Diagnosis("clean", found, {}, tokens)

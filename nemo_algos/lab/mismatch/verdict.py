"""The verdict on some dumps: what a number for each token decides, and what a model adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from nemo_algos.engines.dumps.arrival import compared
from nemo_algos.engines.dumps.dump import Dump
from nemo_algos.lab.mismatch import CAUSES, Cause
from nemo_algos.lab.mismatch.hypotheses import records
from nemo_algos.lab.mismatch.responses import Responses, everything
from nemo_algos.lab.mismatch.where import Bucket, buckets, worst

if TYPE_CHECKING:
    from nemo_algos.lab.mismatch.examination import Examination

# fewer tell nothing
TOKENS = 200
RESPONSES = 8
CLEAN = 1e-4  # nats: mean |d| of float32 by another route; single tokens 20 times
CERTAIN = 0.3  # of the difference may be left where bookkeeping explains it
SURPRISE = 1e-6  # p of tokens as likely as they should be
# median |d|: what is left is as noise; of the level before
NOISE = 1.3
GAIN = 0.8
AGED = 0.5  # rank correlation of a response's level with the age of its weights
# nats, mean |d|: below, what explains less than half is not named
SMALL = 0.02
HALF = 0.5
HEALTHY = 0.05  # nats, mean |d|: docs/mismatch.md says to stop above
BF16 = 0.1  # nats, mean |d|: bfloat16's rounding stays below in models that have been measured
TITLES = {"clean": "no mismatch", "few": "not enough tokens", "unknown": "unknown"}
ROUTES = (
    "The file holds no routes, so experts that differ between the sides are not tried: replay the "
    "sampler's routes in the trainer once to compare"
)
HELD = 0.9  # of the difference: then it has one place, and a guess must fit it
GUESSES = {  # without a model, by where the difference is
    "response": ["rows", "old_weights", "retokenized"],
    "prompt of response": ["template", "stale_prefix"],
    "prompt length": ["template", "positions", "pads_attended"],
    "response length": ["padding", "end_of_response"],
    "place": ["old_weights", "positions", "padding"],
    "token id": ["banned_tokens", "logit_bias"],
    "age of the weights": ["old_weights"],
}
WITH_MODEL = "run the command with --model FOLDER, the trainer's weights of that step"
SIDES = ("sampler", "trainer")


@dataclass(frozen=True)
class Diagnosis:
    """verdict: the first cause's name, or clean, few, unknown; found: what was seen, a sentence.

    causes: the largest first; candidates: what it may be, where it is unknown; decode: gives the
    text of a token's id, where there is a tokenizer.
    """

    verdict: str
    found: str
    tokens: Responses
    causes: list[Cause] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)
    decode: Callable[[int], str] | None = None

    @cached_property
    def where(self) -> list[Bucket]:
        return buckets(self.tokens)

    @cached_property
    def worst(self) -> list[dict[str, Any]]:
        return worst(self.tokens, self.decode)

    @property
    def title(self) -> str:
        """Of the verdict, as a person says it."""
        names = dict.fromkeys(cause.name for cause in self.causes)
        return TITLES.get(self.verdict) or " and ".join(CAUSES[name].title for name in names)

    @property
    def next_step(self) -> str:
        if self.verdict == "few":
            return (
                f"Dump more steps: at least {TOKENS} tokens and {RESPONSES} responses are needed."
            )
        if self.verdict in TITLES:
            return ""
        return CAUSES[self.verdict].next_step

    def numbers(self) -> dict[str, Any]:
        """For scripts, of Python's own types."""
        size = np.abs(self.tokens.d)
        return {
            "verdict": self.verdict,
            "title": self.title,
            "found": self.found,
            "next_step": self.next_step,
            "causes": [vars(cause) for cause in self.causes],
            "candidates": self.candidates,
            "where": [bucket._asdict() for bucket in self.where],
            "worst": self.worst,
            "tokens": len(size),
            "responses": len(self.tokens.each),
            "not_finite": self.tokens.lost,
            "mean": float(size.mean()),
            "max": float(size.max()),
        }


def diagnose(dumps: Sequence[Dump]) -> Diagnosis:
    """What one number for each token decides for certain; else unknown, with candidates."""
    tokens = everything(dumps)
    size = np.abs(tokens.d)
    if tokens.lost:
        share = tokens.lost / (tokens.lost + len(size))
        sampler = any((~np.isfinite(d.sampler_logprobs[d.mask])).any() for d in dumps)
        cause = Cause("not_finite", SIDES[not sampler], {"share": share}, 1.0)
        return _certain(tokens, f"{tokens.lost} log-probs are not finite, {share:.1%}", cause)
    arrived = _arrived(dumps, tokens, "none")
    if arrived:
        return arrived
    if len(size) < TOKENS or len(tokens.each) < RESPONSES:
        count = f"{len(size)} tokens of {len(tokens.each)} responses are too few"
        return Diagnosis("few", count, tokens)
    if size.mean() < CLEAN and size.max() < 20 * CLEAN:
        same = "both sides have the same numbers: one may be a copy of the other"
        found = "the difference is float32 rounding" if size.any() else same
        return _surprising(tokens) or Diagnosis("clean", found, tokens)
    found = _bookkeeping(tokens) or _age(tokens) or _arrived(dumps, tokens, "part")
    return found or _unknown(tokens)


def _certain(tokens: Responses, found: str, cause: Cause) -> Diagnosis:
    return Diagnosis(cause.name, found, tokens, [cause])


def _arrived(dumps: Sequence[Dump], tokens: Responses, state: str) -> Diagnosis | None:
    """What the first and the last file say of the same tokens after the same ids."""
    arrival = compared(dumps[0], dumps[-1])
    if arrival.state != state:
        return None
    if state == "part":
        candidates = ["partial_weights", "old_weights"]
        return Diagnosis("unknown", arrival.sentence, tokens, [], candidates)
    share = max(0.0, 1 - arrival.rounding / arrival.apart)
    cause = Cause("old_weights", "sampler", {"contexts": arrival.contexts}, share)
    return _certain(tokens, arrival.sentence, cause)


def _surprising(tokens: Responses) -> Diagnosis | None:
    """Both sides agree, and the tokens are not as likely as their entropy says."""
    if any(r.entropy is None for r in tokens.each):
        return None
    rows = tokens.means(-tokens.column("sampler") - tokens.column("entropy"))
    found: Any = stats.ttest_1samp(rows, 0.0)
    if not found.pvalue < SURPRISE:
        return None
    more = "more" if rows.mean() > 0 else "less"
    text = (
        f"both sides agree, but the tokens are {abs(rows.mean()):.2g} nats {more} surprising "
        f"than the entropy says: {WITH_MODEL}"
    )
    return Diagnosis("unknown", text, tokens, [], ["recorded_before", "greedy", "speculative"])


def _bookkeeping(tokens: Responses, sides: Sequence[str] = SIDES) -> Diagnosis | None:
    """Bookkeeping, of which these sides are tried in the light of the other."""
    spread = np.full(len(tokens.d), max(1.25 * float(np.median(np.abs(tokens.d))), 1e-5))
    spread = np.minimum(spread, 0.1)  # where most tokens are off, rounding is not what is typical
    for side in sides:
        (other,) = {*SIDES} - {side}
        record = tokens.record(side, spread)
        expected = tokens.column(other)
        for hypothesis in records.HYPOTHESES:
            for fit in hypothesis(record, expected):
                left = float(np.abs(record.value - fit.predicted).mean() / np.abs(tokens.d).mean())
                before = record.level(expected)
                after = record.level(fit.predicted)
                if left < CERTAIN or (after < NOISE and GAIN * before > after):
                    ((name, parameter),) = fit.parameters.items()
                    found = f"it explains {1 - left:.0%} of the difference"
                    return _certain(tokens, found, Cause(name, side, parameter, 1 - left))
    return None


def _age(tokens: Responses) -> Diagnosis | None:
    """Responses differ the more, the older the weights that sampled them."""
    if tokens.age is None or np.ptp(tokens.age) == 0:
        return None
    level = tokens.means(np.abs(tokens.d))
    by_age: Any = stats.spearmanr(level, tokens.age)
    if not by_age.statistic >= AGED or by_age.pvalue > 1e-4:
        return None
    found = f"responses of older weights differ more (rank correlation {by_age.statistic:.2f})"
    oldest = {"oldest": int(tokens.age.max())}
    return _certain(tokens, found, Cause("old_weights", "sampler", oldest, 1.0))


def _unknown(tokens: Responses) -> Diagnosis:
    """The level, and what it cannot be told apart from."""
    d = tokens.d
    mean = float(np.abs(tokens.d).mean())
    held = next((b for b in buckets(tokens) if b.share > HELD), None)
    if held:
        candidates = GUESSES[held.by]
        found = f"{held.share:.0%} of the difference has one place: see where"
    elif (d < 1e-5).mean() > 0.97:
        candidates = ["top_p", "top_k", "min_p", "vocabulary_padding"]
        found = "the sampler gives nearly every token a higher probability"
    elif mean < BF16:
        candidates = ["bfloat16 rounding", "quantized_weights", "old_weights"]
        found = f"mean |d| of {mean:.2g} nats may be only bfloat16 rounding"
        found += f", but healthy runs stay below {HEALTHY}" * (mean > HEALTHY)
    else:
        candidates = ["old_weights", "temperature", "template"]
        found = f"mean |d| of {mean:.2g} nats is more than rounding"
    return Diagnosis("unknown", f"{found}: {WITH_MODEL}", tokens, [], candidates)


def with_model(dumps: Sequence[Dump], examination: Examination) -> Diagnosis:
    """The verdict of an experiment."""
    return replace(_of_experiment(dumps, examination), decode=examination.decode)


def _of_experiment(dumps: Sequence[Dump], examination: Examination) -> Diagnosis:
    tokens = everything(dumps)
    causes = list(examination.causes)
    if float(np.abs(tokens.d).mean()) < SMALL:
        # of the difference, or of what is more than rounding
        near = {}
        for side in examination.sides.values():
            near.update(side.near)
        causes = [c for c in causes if max(c.explains, near.get(c.name, 0.0)) >= HALF]
    at_an_edge = {"top_p", "top_k", "min_p"} & examination.shared.keys()
    if tokens.lost and not at_an_edge:
        causes = diagnose(dumps).causes + causes
    count = f"{examination.tokens} tokens of {examination.responses} responses"
    beyond = examination.beyond
    if not examination.unexplained and not causes and len(beyond):
        rows = np.unique(tokens.row[beyond])
        text = (
            f"the sides agree in {count} that were recomputed, but {len(beyond)} tokens of "
            f"{len(rows)} responses are further apart than rounding, the first in response "
            f"{rows[0]}. Run it with --responses {len(tokens.each)}, or with those rows alone"
        )
        return Diagnosis("unknown", text, tokens)
    if not examination.unexplained:
        alike = [_alike(name, value) for name, value in examination.shared.items()]
        shared = f"both sides have {' and '.join(alike)}, " if alike else ""
        rest = (
            f"{shared}the rest is rounding, in {count} (bfloat16 rounds by "
            f"{examination.rounding:.2g} nats here)"
        )
        return Diagnosis(causes[0].name if causes else "clean", rest, tokens, causes)
    near = {}
    for side in examination.unexplained:
        for k, v in examination.near(side):
            near[k] = v
    sides = {name: examination.sides[name] for name in examination.unexplained}
    unknown = [name for name, side in sides.items() if not side.within_rounding]
    text = f"no known cause explains the {' and '.join(unknown)} side" if unknown else "the rest"
    text += f", in {count}" if unknown else f" is rounding, in {count}, but for single tokens"
    for name, side in sides.items():
        far, furthest = side.far
        share = far / examination.tokens
        text += f". {far} of the {name}'s tokens ({share:.2%}) are further off than rounding"
        text += f", up to {furthest:.2g} nats" * bool(far)
    if examination.routed:  # a dump has no routes, so flips between the sides are not tried
        text += f". {ROUTES}"
    if causes:
        named = {cause.name for cause in causes}
        others = [name for name in near if name not in named]
        return Diagnosis(causes[0].name, text, tokens, causes, others)
    certain = _bookkeeping(tokens, examination.unexplained)
    if certain:
        return replace(certain, candidates=list(near))
    best = ", ".join(f"{name} explains {share:.0%}" for name, share in near.items())
    if best:
        text += f". In the responses that differ most, {best}"
    return Diagnosis("unknown", text, tokens, [], list(near))


def _alike(name: str, parameter: dict[str, Any]) -> str:
    """A cause that both sides have, as text: top_p 0.9."""
    words = [name]
    for key, value in parameter.items():
        if key != "error":
            words.append(f"{value:.3g}" if isinstance(value, float) else str(value))
    return " ".join(words)

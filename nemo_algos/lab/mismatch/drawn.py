"""Whether the tokens were drawn from the distribution that is recorded."""

from typing import Any

import numpy as np
from scipy import stats

from nemo_algos.lab.mismatch.hypotheses.records import minimize
from nemo_algos.lab.mismatch.hypotheses.sampling import TEMPERATURES, Kept, tempered
from nemo_algos.lab.mismatch.logits import Logits
from nemo_algos.lab.mismatch.responses import Responses

Array = np.ndarray
# p-values: below, they were not; above, what is assumed is enough
CHANCE = 1e-8
FITS = 1e-4
STRAY = 2e-3  # of the tokens, which rounding puts beyond a filter's edge
GREEDY = 0.1  # of the share of tokens that should not be the likeliest one
MISSING = 15.0  # tokens that a filter's edge leaves out: fewer are no edge


def drawn(
    logits: Logits, responses: Responses, trainer: float | None = None
) -> dict[str, dict[str, Any]]:
    """The cause by its name; none where the tokens are as likely as the log-probs say.

    trainer: the temperature that the trainer's log-probs have, if it is known.
    """
    rows = [r.ids.tobytes() for r in responses.each]
    first = np.unique(rows, return_index=True)[1]
    logits = logits.only(np.isin(responses.row, first))  # copies say nothing more
    above, own = _interval(logits, logits.probs, logits.logprobs)
    lower = float((logits.rank > 0).mean())
    expected = float((1 - logits.probs[:, 0]).mean())
    if lower < GREEDY * expected and expected * len(above) > MISSING:
        return {"greedy": {}}
    edge, sharp = _edge(logits, above, own)
    if _chance(above, own) > CHANCE:
        return edge
    best = minimize(lambda t: -float(tempered(logits, t).mean()), TEMPERATURES)
    for temperature in (trainer, best):
        chance = _tempered_chance(logits, temperature) if temperature else 0.0
        if chance > FITS and chance > sharp:
            return {"recorded_before": {"temperature": temperature}}
    if edge:  # without a value where the tokens are not drawn from what it keeps
        return edge if sharp > FITS else {"recorded_before": {}}
    return {"speculative": {}}


def _tempered_chance(logits: Logits, temperature: float) -> float:
    """Of the tokens being drawn at a temperature."""
    total = logits.total(lambda z: z / temperature)
    probs = np.exp(logits.top / temperature - total[:, None])
    return _chance(*_interval(logits, probs, tempered(logits, temperature)))


def _interval(logits: Logits, probs: Array, logprobs: Array) -> tuple[Array, Array]:
    """Where each token lies in its distribution, the likeliest first: from there, how long [N].

    probs: of the likeliest [N,K]. A token beyond them lies anywhere behind.
    """
    mass = np.concatenate([np.zeros((len(probs), 1)), np.cumsum(probs, 1)], 1)
    index = np.minimum(logits.rank, probs.shape[1])
    above = np.take_along_axis(mass, index[:, None], 1)[:, 0]
    known = logits.rank < probs.shape[1]
    return above, np.where(known, np.exp(logprobs), np.maximum(1 - above, 0.0))


def _chance(above: Array, own: Array) -> float:
    """Of above + u own being uniform, as it is for tokens of this very distribution."""
    u = np.random.default_rng(0).random(len(own))
    return float(stats.kstest(np.clip(above + u * own, 0, 1), "uniform").pvalue)


def _edge(logits: Logits, above: Array, own: Array) -> tuple[dict[str, dict[str, Any]], float]:
    """The tightest top-p, top-k or min-p that keeps the tokens, if it leaves enough out.

    With it, the chance of tokens that are drawn from what it keeps.
    """
    plain = Kept(logits)
    missing = {}
    gains = {}
    chances = {}
    mass = plain.mass
    below = logits.top[:, 0] - logits.chosen
    values = {
        "top_p": float(np.quantile(above, 1 - STRAY)),
        "top_k": int(np.quantile(logits.rank, 1 - STRAY)) + 1,
        "min_p": float(np.exp(-np.quantile(below, 1 - STRAY))),
    }
    for name, value in values.items():
        index = plain.last(name, value)
        inside = index < mass.shape[1] - 1  # beyond the logits that are kept nothing is known
        kept = np.take_along_axis(mass, index[:, None], 1)[:, 0]
        missing[name] = float((1 - kept[inside]).sum()) - 2 * STRAY * len(mass)
        gains[name] = -float(np.log(np.maximum(kept[inside], 1e-30)).sum())
        drawn_from = np.where(inside, kept, 1.0)
        stray = above >= drawn_from
        chances[name] = _chance((above / drawn_from)[~stray], (own / drawn_from)[~stray])
    name = max(gains, key=gains.__getitem__)
    if missing[name] <= MISSING:
        return {}, 0.0
    return {"recorded_before": {name: values[name]}}, chances[name]

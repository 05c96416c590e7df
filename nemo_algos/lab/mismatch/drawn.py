"""Whether the tokens were drawn from the distribution that is recorded."""

from typing import Any

import numpy as np
from scipy import stats

from nemo_algos.lab.mismatch.hypotheses.fit import minimize
from nemo_algos.lab.mismatch.hypotheses.sampling import TEMPERATURES, Kept, tempered
from nemo_algos.lab.mismatch.logits import Logits
from nemo_algos.lab.mismatch.responses import Responses

Array = np.ndarray
CHANCE, FITS = 1e-8, 1e-4  # p-values: below, they were not; above, what is assumed is enough
STRAY = 2e-3  # of the tokens, which rounding puts beyond a filter's edge
GREEDY = 0.1  # of the share of tokens that should not be the likeliest one
MISSING = 15.0  # tokens that a filter's edge leaves out: fewer are no edge


def drawn(logits: Logits, responses: Responses) -> dict[str, dict[str, Any]]:
    """The cause by its name; none where the tokens are as likely as the log-probs say."""
    rows = [r.ids.tobytes() for r in responses.each]
    first = np.unique(rows, return_index=True)[1]
    logits = logits.only(np.isin(responses.row, first))  # copies say nothing more
    above = _mass(logits, logits.probs)
    lower = float((logits.rank > 0).mean())
    expected = float((1 - logits.probs[:, 0]).mean())
    if lower < GREEDY * expected and expected * len(above) > MISSING:
        return {"greedy": {}}
    edge, gain = _edge(logits, above)
    if _chance(above, np.exp(logits.logprobs)) > CHANCE:
        return edge
    temperature = minimize(lambda t: -float(tempered(logits, t).mean()), TEMPERATURES)
    warmer = tempered(logits, temperature)
    if edge and gain > float((warmer - logits.logprobs).sum()):
        return edge
    total = logits.total(lambda z: z / temperature)
    probs = np.exp(logits.top / temperature - total[:, None])
    if _chance(_mass(logits, probs), np.exp(warmer)) > FITS:
        return {"recorded_before": {"temperature": temperature}}
    return edge or {"speculative": {}}


def _mass(logits: Logits, probs: Array) -> Array:
    """Of the tokens that are likelier than the drawn one [N]; probs: of the likeliest [N,K]."""
    mass = np.concatenate([np.zeros((len(probs), 1)), np.cumsum(probs, 1)], 1)
    index = np.minimum(logits.rank, probs.shape[1])
    above = np.take_along_axis(mass, index[:, None], 1)[:, 0]
    return np.where(logits.rank > probs.shape[1], (1 + above) / 2, above)


def _chance(above: Array, own: Array) -> float:
    """Of above + u own being uniform, as it is for tokens of this very distribution."""
    u = np.random.default_rng(0).random(len(own))
    return float(stats.kstest(np.clip(above + u * own, 0, 1), "uniform").pvalue)


def _edge(logits: Logits, above: Array) -> tuple[dict[str, dict[str, Any]], float]:
    """The tightest top-p, top-k or min-p that keeps the tokens, if it leaves enough out.

    With it, by how much it makes the tokens likelier, nats.
    """
    plain, missing, gains = Kept(logits, 1.0), {}, {}
    mass, below = plain.mass, logits.top[:, 0] - logits.chosen
    values = {
        "top_p": float(np.quantile(above, 1 - STRAY)),
        "top_k": int(np.quantile(logits.rank, 1 - STRAY)) + 1,
        "min_p": float(np.exp(-np.quantile(below, 1 - STRAY))),
    }
    for name, value in values.items():
        index = plain.last(name, value)
        inside = index < mass.shape[1] - 1  # beyond the logits that are kept nothing is known
        kept = np.take_along_axis(mass, index[:, None], 1)[inside, 0]
        missing[name] = float((1 - kept).sum()) - 2 * STRAY * len(mass)
        gains[name] = -float(np.log(np.maximum(kept, 1e-30)).sum())
    name = max(gains, key=gains.__getitem__)
    found = {"recorded_before": {name: values[name]}} if missing[name] > MISSING else {}
    return found, gains[name]

"""The cause by experiment: both sides' log-probs are recomputed from the trainer's weights.

The logits also show whether the tokens were drawn from the distribution that is recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor

from nemo_algos.engines.dumps.dump import Dump
from nemo_algos.lab.mismatch import Cause
from nemo_algos.lab.mismatch.hypotheses.forward import Case
from nemo_algos.lab.mismatch.hypotheses.records import FAR, ROUNDING, Array, minimize
from nemo_algos.lab.mismatch.hypotheses.sampling import TEMPERATURES, Kept, tempered
from nemo_algos.lab.mismatch.hypotheses.weights import adapted, lora, routers
from nemo_algos.lab.mismatch.network import Logits, Network, confirm, in_bfloat16, load, recompute
from nemo_algos.lab.mismatch.responses import Responses, everything, gather
from nemo_algos.lab.mismatch.search import CHANCE, EXACT, SLACK, Outcome, Search, Side

# p-values: below, they were not; above, what is assumed is enough
SURPRISE = 1e-8
FITS = 1e-4
UNSURE = 1e-4  # the least 1 - p that a log-prob is compared with
STRAY = 2e-3  # of the tokens, which rounding puts beyond a filter's edge
GREEDY = 0.1  # of the share of tokens that should not be the likeliest one
MISSING = 15.0  # tokens that a filter's edge leaves out: fewer are no edge
SIDES = ("trainer", "sampler")
ALIKE = 0.02  # of a parameter of both sides
ADOPTED = 8  # responses that decide whether --model lacks the adapter
MOST = 0.5  # of the difference: then single tokens may be left
LEAST = 0.3  # of the difference: what explains less misleads
VAGUE = 0.8  # of the difference: padding of a vocabulary whose logits differ from place to place
LIKELIER = 2.0  # nats, all tokens together; by chance in a case of 40, were the sum normal
OTHER_WEIGHTS = (
    "sampler and trainer agree with each other, but not with --model: the trainer had other "
    "weights at this step, or both sides change the logits in a way that is not tried. Name the "
    "folder of the weights, and compare the sampling parameters and the chat template"
)


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
    if _chance(above, own) > SURPRISE:
        return edge
    best = minimize(lambda t: -float(tempered(logits, t).mean()), TEMPERATURES)
    for temperature in (trainer, best):
        chance = _tempered_chance(logits, temperature) if temperature else 0.0
        if chance > FITS and chance > sharp:
            return {"recorded_before": {"temperature": temperature}}
    if edge:  # without a value where the tokens are not drawn from what it keeps
        if sharp > FITS:
            return edge
        return {"recorded_before": {}}
    return {"speculative": {}}


def _tempered_chance(logits: Logits, temperature: float) -> float:
    """Of the tokens being drawn at a temperature."""
    total = logits.total(lambda z: z / temperature)
    probs = np.exp(logits.top / temperature - total[:, None])
    above, own = _interval(logits, probs, tempered(logits, temperature))
    return _chance(above, own)


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


@dataclass(frozen=True)
class Examination:
    """What the experiment found. causes: the largest first; sides: what became of each.

    rounding: mean |d| of a bf16 forward, nats; tokens, responses: how many were recomputed; beyond:
    the tokens of all files whose sides are further apart than rounding, where that is no chance;
    shared: what both sides do alike, such as top-p, and its parameter; routed: the model is a
    mixture of experts; decode: gives the text of a token's id.
    """

    causes: list[Cause]
    sides: dict[str, Outcome]
    rounding: float
    tokens: int
    responses: int
    beyond: Array
    shared: dict[str, dict[str, Any]]
    routed: bool = False
    decode: Callable[[int], str] | None = None

    def near(self, side: str) -> list[tuple[str, float]]:
        """What explains the most of a side that is not explained, and its share, from 0.3 on."""
        near = [item for item in self.sides[side].near.items() if item[1] >= LEAST]
        return sorted(near, key=lambda item: -round(item[1], 2))[:3]

    @property
    def unexplained(self) -> list[str]:
        """Sides of which more than rounding is left."""
        return [name for name, side in self.sides.items() if not side.explained]


def examine(
    dumps: Sequence[Dump],
    model: Path,
    previous: Sequence[Path] = (),
    adapter: Path | None = None,
    count: int = 64,
    progress: Callable[[str], None] = lambda text: None,
) -> Examination:
    """The causes of both sides' differences from the model.

    model, previous, adapter: folders of Hugging Face's or PEFT's files; count: of responses.
    Raises ValueError where a folder cannot be read, or the dumps hold no prompts.
    """
    responses = gather(dumps, count)
    network = load(model)
    confirm(network, responses.each[0], model)
    case = _case(network, responses, previous, adapter)
    progress("the model as it is")
    responses, base = _worst_first(responses, recompute(case.network, responses))
    coarse = in_bfloat16(case.network)
    rounded = recompute(coarse, responses)
    size = float(np.sqrt(np.mean(((rounded.logprobs - base.logprobs) / base.unsure) ** 2)))
    scale = np.maximum(size * base.unsure, ROUNDING)
    rounding = float(np.mean(np.abs(rounded.logprobs - base.logprobs) / scale))
    forwards = [(case.network, base), (coarse, rounded)]

    def told(side: str, hypothesis: str) -> None:
        progress(f"{side}: {hypothesis}")

    sides: dict[str, Outcome] = {}
    for name in SIDES:
        side = Side(responses.record(name, scale, EXACT * rounding), base)
        search = Search(case, forwards, responses, side, rounding, partial(told, name))
        sides[name] = search.outcome(sides.get("trainer"))
    sides["sampler"] = _drawn_by_the_model(sides["sampler"], responses, base)
    apart = responses.record("trainer", scale).level(responses.column("sampler"))
    if apart <= SLACK * rounding and not any(side.explained for side in sides.values()):
        raise ValueError(OTHER_WEIGHTS)
    level = float(np.mean(scale)) * rounding
    causes = _causes(sides, responses)
    decode = network.tokenizer and (lambda token: network.tokenizer.decode([token]))
    return Examination(
        causes,
        sides,
        level,
        tokens=len(responses.row),
        responses=len(responses.each),
        beyond=_beyond(everything(dumps), sides["sampler"], responses, size),
        shared=_shared(sides),
        routed=bool(routers(network)),
        decode=decode,
    )


def _case(
    network: Network, responses: Responses, previous: Sequence[Path], adapter: Path | None
) -> Case:
    added = lora(adapter, network) if adapter else {}
    earlier = {_name(path, previous): _earlier(path, network) for path in previous}
    if added:
        _adopt(network, added, responses)
    pad = getattr(network.tokenizer, "pad_token_id", None) or 0
    longest = max(r.begin for r in responses.each)
    sizes = responses.micro_batches()
    return Case(network, earlier, added, pad=pad, longest=longest, micro_batches=sizes)


def _shared(sides: dict[str, Outcome]) -> dict[str, dict[str, Any]]:
    """What both sides have alike."""
    shared = {}
    for name, parameter in sides["trainer"].parameters.items():
        if _same(Cause(name, "trainer", parameter, 1.0), "sampler", sides["sampler"]):
            shared[name] = parameter
    return shared


def _causes(sides: dict[str, Outcome], responses: Responses) -> list[Cause]:
    """Of both sides, without what they share."""
    causes = list[Cause]()
    for name in SIDES[::-1]:
        for cause in _named(name, sides[name]):
            if not any(_same(cause, side, outcome) for side, outcome in sides.items()):
                causes.append(cause)
    sampler = sides["sampler"]
    if not sampler.explained or sampler.state.sampling or sampler.state.bookkeeping:
        return causes
    trainer = sides["trainer"].parameters.get("temperature", {}).get("temperature")
    found = drawn(sampler.logits, responses, trainer)
    if trainer and found.get("recorded_before", {}).get("temperature") == trainer:
        # a trainer's temperature that the tokens have too is the run's
        causes = [c for c in causes if (c.name, c.side) != ("temperature", "trainer")]
    return [Cause(name, "sampler", value, 1.0) for name, value in found.items()] + causes


def _drawn_by_the_model(sampler: Outcome, responses: Responses, base: Logits) -> Outcome:
    """Not explained where the model as it is would rather have drawn the tokens: as of a draft."""
    state = sampler.state
    if not state.changes or state.mixed or state.sampling or state.bookkeeping:
        return sampler
    gained = float((base.logprobs - responses.column("sampler")).sum())
    if gained < LIKELIER or drawn(sampler.logits, responses):
        return sampler
    share = max(sampler.near.values(), default=0.0)
    near = {"speculative": share} | sampler.near
    return replace(sampler, explained=False, within_rounding=False, near=near)


def _name(folder: Path, all_of_them: Sequence[Path]) -> str:
    """Its last part, or all of it where others end alike: step_1/hf and step_2/hf."""
    alike = sum(other.name == folder.name for other in all_of_them)
    return folder.name if alike == 1 else str(folder)


def _earlier(folder: Path, network: Network) -> dict[str, Tensor]:
    """A checkpoint's parameters by name. Raises ValueError where they are another model's."""
    now = {name: p.shape for name, p in network.model.named_parameters()}
    old = dict(load(folder).model.named_parameters())
    if now != {name: p.shape for name, p in old.items()}:
        raise ValueError(
            f"{folder} is a different model from --model. Name an earlier checkpoint of it."
        )
    return old


def _adopt(network: Network, adapter: dict[str, Tensor], responses: Responses) -> None:
    """Merge the adapter for good, where the trainer's log-probs are of the merged model."""
    some = responses.first(ADOPTED)
    recorded = some.column("trainer")
    merged = (adapted(adapter, 1.0),)
    without = np.abs(recompute(network, some, ()).logprobs - recorded).mean()
    within = np.abs(recompute(network, some, merged).logprobs - recorded).mean()
    if within < without:
        for name, added in adapter.items():
            parameter = network.model.get_parameter(name)
            parameter.data += added.to(parameter.dtype)


def _worst_first(responses: Responses, base: Logits) -> tuple[Responses, Logits]:
    """In the order of their differences: the first ones are tried on."""
    off = np.abs(responses.column("sampler") - base.logprobs)
    off = np.maximum(off, np.abs(responses.column("trainer") - base.logprobs))
    order = np.argsort(-responses.means(np.minimum(off, 1.0)), kind="stable")
    worst = []
    tokens = []
    for i in order:
        worst.append(responses.each[i])
        tokens.append(np.flatnonzero(responses.row == i))
    return Responses(tuple(worst)), base.only(np.concatenate(tokens))


def _beyond(tokens: Responses, sampler: Outcome, some: Responses, size: float) -> Array:
    """The indices of tokens, recomputed or not, whose sides rounding does not take so far apart.

    None where the bf16 forward has its share of them, too. some: those recomputed; size: of bf16's
    noise in the logits.
    """
    beyond = np.flatnonzero(_apart(tokens.column("sampler"), tokens.column("trainer"), size))
    recorded = some.column("sampler")
    share = float(_apart(recorded, recorded + sampler.rounded, size).mean())
    most = share * len(tokens.row)
    if len(beyond) > most + CHANCE * np.sqrt(2 * most):
        return beyond
    return beyond[:0]


def _apart(one: Array, other: Array, size: float) -> Array:
    """Whether two log-probs differ by more than rounding of both, by their numbers alone [N].

    Noise in the logits moves a log-prob by at most sqrt(2) (1 - p) as much.
    """
    unsure = np.sqrt(2) * np.maximum(-np.expm1(np.minimum(one, other).clip(max=0)), UNSURE)
    return ~(np.abs(one - other) <= FAR * np.maximum(np.sqrt(2) * size * unsure, ROUNDING))


def _named(name: str, side: Outcome) -> list[Cause]:
    """Of a side that is explained, but for some tokens if it explains most of the others.

    Of padding with logits of its own, where nearly all is.
    """
    share = (side.level - side.left) / max(side.level, 1e-9)
    padding = {"vocabulary_padding"} == set(side.parameters) and share > VAGUE
    most = side.within_rounding and share > MOST
    if not (side.explained or most or padding):
        return []
    return [Cause(k, name, v, share) for k, v in side.parameters.items()]


def _same(cause: Cause, side: str, outcome: Outcome) -> bool:
    """Whether the other side has it alike: then it is how the run is, not a difference."""
    other = outcome.parameters.get(cause.name)
    if side == cause.side or other is None or other.keys() != cause.parameter.keys():
        return False
    return all(_alike(v, other[k]) for k, v in cause.parameter.items() if k != "error")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return bool(np.isclose(one, other, rtol=ALIKE))
    return one == other

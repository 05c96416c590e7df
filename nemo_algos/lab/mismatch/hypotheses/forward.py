"""Hypotheses about the forward: what the model is shown, and how it computes.

Each tries its candidates one after the other, a parameter and its change.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from nemo_algos.engines.dumps.responses import Array, Response
from nemo_algos.lab.mismatch.network import (
    Change,
    Lines,
    Network,
    edit_attributes,
    edit_outputs,
    lines,
    modules,
)

# rotary scalings, and the numbers that one needs besides its factor and the length before it
SCALINGS = {"linear": {}, "yarn": {}, "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}
ORIGINAL = "original_max_position_embeddings"
HELPS = 0.95  # of the level before: a search goes on near a value that comes below


@dataclass(frozen=True)
class Case:
    """What is at hand. previous: of each earlier checkpoint, adapter: of the LoRA, by name.

    pad: the id; longest: prompt's tokens; micro_batches: sizes in which prompts would be padded.
    """

    network: Network
    previous: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    adapter: dict[str, Tensor] = field(default_factory=dict)
    pad: int = 0
    longest: int = 0
    micro_batches: Sequence[int] = ()


# a parameter and its change are tried: the level that they leave, of 1
Attempt = Callable[[dict[str, Any], Change], float]


@dataclass(frozen=True)
class Hypothesis:
    """name: of the cause; attempt: tries its candidates, if the case has what they need."""

    name: str
    attempt: Callable[[Case, Attempt], object]


def named(*attempts: Callable[[Case, Attempt], object]) -> list[Hypothesis]:
    """Hypotheses whose causes are called as these functions are."""
    return [Hypothesis(attempt.__name__, attempt) for attempt in attempts]


def search_grid(level: Callable[[Any], float], grid: Sequence[float], steps: int = 5) -> Any:
    """The value that leaves the least level: of a grid, then between the neighbours of its best.

    Integers stay so. It goes on beyond the grid only if the best value helps.
    """
    levels = {value: level(value) for value in grid}
    whole = all(isinstance(value, int) for value in grid)
    for _ in range(steps if len(levels) > 1 else 0):
        known = sorted(levels)
        best = min(levels, key=levels.__getitem__)
        if levels[best] > HELPS:
            break
        gaps = [gap for gap in pairwise(known) if best in gap]
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        value = (low + high) // 2 if whole else (low + high) / 2
        if value in levels:
            break
        levels[value] = level(value)
    return min(levels, key=levels.__getitem__, default=None)


def of_lines(edit: Callable[..., Any]) -> Change:
    """A change of what the model is shown: edit(network, lines, responses)."""

    @contextmanager
    def change(network: Network, shown: Any, some: Any) -> Any:
        yield edit(network, shown, some)

    return change


def of_model(edit: Callable[..., Any]) -> Change:
    """A change of the model: edit(network) is a context."""

    @contextmanager
    def change(network: Network, shown: Any, some: Any) -> Any:
        with edit(network):
            yield shown

    return change


def of_attribute(name: str, edit: Callable[[Any], Any]) -> Change:
    """Each module that has an attribute of this name has edit(attribute)."""

    def edited(network: Network) -> Any:
        of = {k: m for k, m in network.model.named_modules() if hasattr(m, name)}
        return edit_attributes(of, name, lambda _, value: edit(value))

    return of_model(edited)


def of_outputs(edit: Callable[[Any], Any], *endings: str) -> Change:
    """The modules whose names end so give edit(output)."""
    return of_model(lambda n: edit_outputs(modules(n, *endings), lambda _, y: edit(y)))


def _behind(prompt: Callable[[Response], Array]) -> Change:
    """Responses stand behind another prompt."""
    return of_lines(lambda _, __, some: lines(some, list(map(prompt, some))))


def template(case: Case, attempt: Attempt) -> None:
    """A part of the template is missing, or stands twice."""

    def add(variant: str, edit: Callable[[Array], Array]) -> None:
        attempt({"variant": variant}, _behind(lambda response: edit(response.prompt)))

    tokenizer = case.network.tokenizer
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        bos = case.network.model.config.bos_token_id
    if bos is not None:
        add("BOS more", lambda prompt: np.r_[bos, prompt])
        add("no BOS", lambda prompt: prompt[1:] if prompt[0] == bos else prompt)
    add("no system prompt", _without_first_turn)
    add("no generation prompt", _without_last_turn)
    if tokenizer is not None and tokenizer.chat_template:
        system = _system(tokenizer)
        add("default system prompt", lambda prompt: np.r_[system, prompt])
    add("last token missing", lambda prompt: prompt[:-1])


def truncated(case: Case, attempt: Attempt) -> None:
    """The prompt is cut on its left, by so many tokens or to so many."""

    def cut(count: int) -> float:
        shorter = _behind(lambda response: response.prompt[min(count, response.begin - 1) :])
        return attempt({"cut": count}, shorter)

    def kept(count: int) -> float:
        return attempt({"kept": count}, _behind(lambda response: response.prompt[-count:]))

    grid = [n for n in (1, 2, 4, 8, 16, 24, 32, 64, 128) if n < case.longest]
    search_grid(cut, grid, steps=6)
    grid = [n for n in (16, 32, 64, 128, 256, 512, 1024) if n < case.longest]
    search_grid(kept, grid)


def _turns(prompt: Array) -> Array:
    """Where turns begin: at the id that the prompt begins with."""
    return np.flatnonzero(prompt == prompt[0])


def _without_first_turn(prompt: Array) -> Array:
    starts = _turns(prompt)
    if len(starts) <= 2:
        return prompt
    return prompt[starts[1] :]


def _without_last_turn(prompt: Array) -> Array:
    starts = _turns(prompt)
    if len(starts) <= 1:
        return prompt
    return prompt[: starts[-1]]


def _system(tokenizer: Any) -> Array:
    """What the template puts before a user's turn of its own accord; nothing where it does not."""
    turn = [{"role": "user", "content": "?"}]
    shown = tokenizer.apply_chat_template(turn, tokenize=True, add_generation_prompt=True)
    ids = np.asarray(getattr(shown, "input_ids", shown)).ravel()
    starts = _turns(ids)
    if len(starts) <= 2:
        return ids[:0]
    return ids[: starts[1]]


def pads_attended(case: Case, attempt: Attempt) -> None:
    """Prompts are padded on the left, and no mask hides the pads."""

    def padded(pad: int, size: int) -> Change:
        def prompt(response: Response) -> Array:
            return np.pad(response.prompt, (response.pads(size), 0), constant_values=pad)

        return _behind(prompt)

    eos = getattr(case.network.model.config, "eos_token_id", None) or 0
    pads = {pad for pad in (case.pad, 0, eos) if isinstance(pad, int)}
    for pad in sorted(pads):
        for size in case.micro_batches:
            attempt({"pad": pad, "micro_batch": size}, padded(pad, size))


def positions(case: Case, attempt: Attempt) -> None:
    """Positions of a response do not go on where its prompt's end."""

    def moved(offset: Callable[[Response, int], int]) -> Change:
        def edit(network: Network, shown: Lines, some: Sequence[Response]) -> Lines:
            place = shown.positions.clone()
            for (line, at), response in zip(shown.at, some, strict=True):
                first = int(at[0]) + 1
                place[line, first:] += offset(response, first)
            return replace(shown, positions=place.clamp(min=0))

        return of_lines(edit)

    def by(offset: int) -> Change:
        return moved(lambda response, first: offset)

    def by_pads(size: int) -> Change:
        return moved(lambda response, first: response.pads(size))

    for k in (1, 2, 3, 4, 8, 16, 32, 64, 128):
        attempt({"offset": k}, by(k))
        attempt({"offset": -k}, by(-k))
    for size in case.micro_batches:
        attempt({"offset": "pads", "micro_batch": size}, by_pads(size))
    attempt({"offset": "from 0"}, moved(lambda response, first: -first))


def _rope(case: Case) -> dict[str, Any]:
    """The rotary embedding's parameters, where there is one that can be changed."""
    parameters = getattr(case.network.model.config, "rope_parameters", None) or {}
    known = any(hasattr(m, "rotary_emb") for m in case.network.model.modules())
    if known and "rope_theta" in parameters:
        return parameters
    return {}


def _rotary(case: Case, **changed: Any) -> Change:
    config = copy.deepcopy(case.network.model.config)
    config.rope_parameters = {**config.rope_parameters, **changed}
    return of_attribute("rotary_emb", lambda before: type(before)(config=config))


def rope_base(case: Case, attempt: Attempt) -> None:
    """Another base of the rotary embedding."""
    rope = _rope(case)
    if not rope:
        return

    def based(theta: float) -> float:
        return attempt({"theta": theta}, _rotary(case, rope_theta=theta))

    own = rope["rope_theta"]
    search_grid(based, sorted({1e4, 1e5, 2.5e5, 5e5, 1e6, 1e7, own * 2, own / 2} - {own}))


def rope_scaling(case: Case, attempt: Attempt) -> None:
    """Positions are divided by a factor (linear, YaRN, Llama 3), or the model's own is lost.

    The length before a scaling is the folder's, or this divided by a power of 2.
    """
    rope = _rope(case)
    if not rope:
        return
    attempt(  # as an infinite factor: all positions are the first one
        {"positions": "none"},
        of_outputs(lambda both: tuple(y[:, :1].expand_as(y) for y in both), "rotary_emb"),
    )
    if rope.get("rope_type", "default") != "default":
        attempt({"factor": 1.0}, _rotary(case, rope_type="default"))
    longest = rope.get(ORIGINAL, case.network.model.config.max_position_embeddings)
    for kind in SCALINGS:
        lengths = [0]
        if kind != "linear":
            lengths = [longest // n for n in (1, 2, 4, 8, 16)]
        _scaled(case, attempt, kind, lengths)


def _scaled(case: Case, attempt: Attempt, kind: str, lengths: Sequence[int]) -> None:
    """One kind of scaling: its factor, and the length before it (0: it has none)."""

    @cache
    def level(factor: float, length: int) -> float:
        parameters: dict[str, Any] = {"rope_type": kind, "factor": factor}
        if length:
            parameters[ORIGINAL] = length
        return attempt(parameters, _rotary(case, **parameters, **SCALINGS[kind]))

    def best_factor(length: int) -> float:
        return search_grid(lambda factor: level(factor, length), (0.5, 2.0, 4.0, 8.0))

    factor = 8.0
    for _ in range(2):  # each where the other one is best
        length = min(lengths, key=partial(level, factor))
        factor = best_factor(length)


def attention_scale(case: Case, attempt: Attempt) -> None:
    """Attention's logits are multiplied by another number than 1 / sqrt(head size)."""

    def scaled(factor: float) -> float:
        change = of_attribute("scaling", lambda value: value * factor)
        return attempt({"scale": factor}, change)

    scaled(0.0)  # all tokens alike, as with rotary embeddings of zeros
    search_grid(scaled, (0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 8.0))


def norm_eps(case: Case, attempt: Attempt) -> None:
    """Another epsilon in the norms."""
    variance = any(hasattr(m, "variance_epsilon") for m in case.network.model.modules())
    name = "variance_epsilon" if variance else "eps"
    for eps in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        attempt({"eps": eps}, of_attribute(name, partial(_instead, eps)))


def _instead(value: Any, _: Any) -> Any:
    return value


# a cut prompt is called as a part of the template that is missing
SHOWN = [*named(template, pads_attended, positions), Hypothesis("template", truncated)]
COMPUTED = named(rope_base, rope_scaling, attention_scale, norm_eps)

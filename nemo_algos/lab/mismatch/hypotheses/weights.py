"""Which weights: of an earlier checkpoint, in whole or in part; with another adapter."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_algos.engines.mismatch.responses import Response
from nemo_algos.lab.mismatch.hypotheses.fit import crossing
from nemo_algos.lab.mismatch.hypotheses.forward import (
    Attempt,
    Case,
    Hypothesis,
    of_model,
    search_grid,
)
from nemo_algos.lab.mismatch.network import (
    Change,
    Lines,
    Network,
    edit_attributes,
    edit_outputs,
    hidden_states,
    logits,
    logprobs,
    modules,
)

Weights = dict[str, Tensor]
BLOCKS = (16, 1, 32, 64)  # tokens that a cache keeps together; vLLM: 16
STEPS = (-2, -1, 1)  # to places beside the one where weights seem to change
KINDS = {
    "embed_tokens": r"embed",
    "lm_head": r"lm_head",
    "self_attn": r"self_attn",
    "mlp": r"\.mlp\.",
    "norm": r"norm",
    "all but norm": r"^(?!.*norm)",
    "layers": r"\.layers\.",
}


def _edited(which: Callable[[str], bool], edit: Callable[[str, Tensor], Tensor]) -> Change:
    """The parameters of these names are edit(name, parameter)."""
    named = lambda n: {k: p for k, p in n.model.named_parameters() if which(k)}  # noqa: E731
    return of_model(lambda n: edit_attributes(named(n), "data", edit))


def replaced(old: Weights, which: Callable[[str], bool] = lambda _: True) -> Change:
    """The parameters of these names are the old ones."""
    return _edited(which, lambda name, now: old[name].to(now.dtype))


def old_weights(case: Case, attempt: Attempt) -> None:
    """All are of an earlier checkpoint."""
    for name, old in case.previous.items():
        attempt({"folder": name}, replaced(old))


def partial_weights(case: Case, attempt: Attempt) -> None:
    """Some modules are of an earlier checkpoint: kinds of modules, then a bisection of layers."""
    for name, old in case.previous.items():

        def some(modules: str, pattern: str, name: str = name, old: Weights = old) -> float:
            found = re.compile(pattern).search
            change = replaced(old, lambda k: bool(found(k)))
            return attempt({"folder": name, "modules": modules}, change)

        def layers(low: int, high: int, some: Any = some) -> float:
            text = f"layer {low}" if high - low == 1 else f"layers {low} to {high - 1}"
            return some(text, rf"\.layers\.({'|'.join(map(str, range(low, high)))})\.")

        for kind, pattern in KINDS.items():
            some(kind, pattern)
        low, high = 0, case.network.model.config.num_hidden_layers
        while high - low > 1:
            middle = (low + high) // 2
            first = layers(low, middle) < layers(middle, high)
            low, high = (low, middle) if first else (middle, high)


def stale_prefix(case: Case, attempt: Attempt) -> None:
    """Keys and values of prompts are of an earlier checkpoint: a cache outlived a refit."""
    for name, old in case.previous.items() if _cached(case.network) else ():
        for block in BLOCKS:
            attempt({"folder": name, "block": block}, _stale(old, block))


def _stale(old: Weights, block: int) -> Change:
    @contextmanager
    def change(network: Network, shown: Lines, some: Sequence[Response]) -> Iterator[Lines]:
        _, cached = _before(network, shown, some, old, hidden_states)
        # the last token is computed anew
        with cached([int(at[0]) // block * block for _, at in shown.at]):
            yield shown

    return change


def _cached(network: Network) -> list[Any]:
    """What gives the keys and values."""
    return modules(network, "k_proj", "v_proj")


def _before(
    network: Network, shown: Lines, some: Sequence[Response], old: Weights, forward: Callable
) -> Any:
    """What forward(network, shown) gives with the old weights; and cached(lengths), a context.

    In it their keys and values stand for so many first places of each response's line.
    """
    of, kept = _cached(network), dict[int, Tensor]()
    with edit_outputs(of, lambda i, y: kept.setdefault(i, y)), replaced(old)(network, shown, some):
        first = forward(network, shown)

    def cached(lengths: Sequence[int]) -> AbstractContextManager[None]:
        stale = torch.zeros(*shown.ids.shape, 1, dtype=torch.bool)
        for (line, _), length in zip(shown.at, lengths, strict=True):
            stale[line, :length] = True
        return edit_outputs(of, lambda i, y: torch.where(stale, kept[i].to(y.dtype), y))

    return first, cached


def in_flight(case: Case, attempt: Attempt) -> None:
    """Weights change within responses, and keys and values of the old ones stay in the cache."""
    if case.side == "sampler" and _cached(case.network):
        for name, old in case.previous.items():
            attempt({"folder": name, "cache": "kept"}, _carried(old, case.temperature))


def _carried(old: Weights, temperature: float) -> Change:
    """The place in each response is where both parts come nearest to what the sampler recorded."""
    found: dict[int, int] = {}  # by id of the response

    def off(z: Tensor, r: Response) -> np.ndarray:
        own = logprobs(z.float() / temperature, r).detach().numpy()
        return np.minimum(np.abs(own - r.sampler), 1.0)  # nats

    @contextmanager
    def change(network: Network, shown: Lines, some: Sequence[Response]) -> Iterator[Lines]:
        first, cached = _before(network, shown, some, old, lambda *of: list(logits(*of)))

        def after(places: Sequence[int]) -> list[np.ndarray]:
            with cached(_lengths(shown, places)):
                return list(map(off, logits(network, shown), some))

        if any(id(r) not in found for r in some):
            places = _places(list(map(off, first, some)), after)
            found.update(zip(map(id, some), places, strict=True))
        places = [found[id(r)] for r in some]
        with cached(_lengths(shown, places)):
            yield replace(shown, known=[z[:n] for z, n in zip(first, places, strict=True)])

    return change


def _places(before: Sequence[np.ndarray], after: Callable) -> list[int]:
    """Of each response, where after(places) [n] becomes less off than before [n]."""
    places = [crossing(x, np.full_like(x, x.mean() / 4)) for x in before]  # rather too early
    near = [list(map(crossing, before, after(places)))]
    near += [[max(n + step, 0) for n in near[0]] for step in STEPS]
    sums = [
        [x[:n].sum() + y[n:].sum() for x, n, y in zip(before, option, after(option), strict=True)]
        for option in near
    ]
    return [near[int(i)][j] for j, i in enumerate(np.argmin(sums, 0))]


def _lengths(shown: Lines, places: Sequence[int]) -> list[int]:
    """How many places the old weights had computed when so many tokens were drawn."""
    ends = [at[min(n, len(at)) - 1] for (_, at), n in zip(shown.at, places, strict=True)]
    return [int(end) + 1 if n else 0 for end, n in zip(ends, places, strict=True)]


def adapted(adapter: Weights, scale: float, dtype: torch.dtype | None = None) -> Change:
    """W + scale BA; rounded to a dtype after the merge."""

    def edit(name: str, now: Tensor) -> Tensor:
        merged = now.float() + scale * adapter[name]
        return merged.to(dtype or now.dtype).to(now.dtype)

    return _edited(adapter.__contains__, edit)


def _scaled(*scales: float) -> Callable[[Case, Attempt], None]:
    """The adapter has another scale, where 1 is the trainer's; between several it is searched."""

    def attempted(case: Case, attempt: Attempt) -> None:
        if case.adapter:  # which the model has once
            search_grid(attempt, "scale", scales, lambda s: adapted(case.adapter, s - 1))

    return attempted


def adapter_merged(case: Case, attempt: Attempt) -> None:
    """Merged into weights in bfloat16, where what is below their grid is lost."""
    if case.adapter:
        attempt({"dtype": "bfloat16"}, adapted(case.adapter, 0.0, torch.bfloat16))


HYPOTHESES = [
    Hypothesis("old_weights", old_weights),
    Hypothesis("old_weights", in_flight, far=True),
    Hypothesis("adapter_missing", _scaled(0.0)),
    Hypothesis("adapter_twice", _scaled(2.0)),
    Hypothesis("adapter_scale", _scaled(0.0, 0.5, 2.0, 4.0, 8.0)),  # rsLoRA: the root of the rank
    Hypothesis("adapter_merged_bf16", adapter_merged),
    Hypothesis("stale_prefix", stale_prefix),
    Hypothesis("partial_weights", partial_weights),
]

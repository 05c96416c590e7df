"""One damaged module of one layer: ranked by gradients, and the likeliest ones tried."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nemo_algos.lab.mismatch.hypotheses.forward import (
    HELPS,
    Attempt,
    Case,
    Hypothesis,
    of_outputs,
    search_grid,
)
from nemo_algos.lab.mismatch.network import (
    Network,
    edit_outputs,
    lines,
    logits,
    logprobs,
)

PROJECTION = re.compile(r"\.layers\.(\d+)\.(.*_proj)$")
AGAIN = ("k_proj", "v_proj", "up_proj")  # whose scale is that of another one
ALIKE = {
    "q_proj": "q_proj or k_proj",
    "o_proj": "v_proj or o_proj",
    "down_proj": "up_proj or down_proj",
}
SCALES = (-1.0, 0.0, 0.5, 0.8, 1.25, 1.5, 2.0)
KINDS, ENDS = ("scale", "halves"), ("o_proj", "down_proj")
FOUND = 0.1  # of the level: this is it
SIGNS, TRIED = 8, 4  # draws that a gradient's size is estimated by; modules that are tried


Edit = tuple[str, str]  # a module's name, and what is done with its outputs


class Gain(NamedTuple):
    """Of the squared difference, the share that a gradient alone explains; and the edit's size."""

    share: float
    step: float


def _exchanged(y: Tensor) -> Tensor:
    """The halves of the outputs, as of two tensor-parallel ranks."""
    return y.roll(y.shape[-1] // 2, -1)


def _projections(network: Network) -> dict[str, nn.Module]:
    return {k: m for k, m in network.model.named_modules() if PROJECTION.search(k)}


def gains(case: Case) -> dict[Edit, Gain]:
    """Of each module and edit."""
    named = _projections(case.network)
    by = torch.tensor([[1.0, 0.0]] * len(named), requires_grad=True)

    def slope(weights: Tensor) -> Tensor:
        return torch.autograd.grad(logprobs @ weights, by, retain_graph=True)[0]

    def edit(i: int, y: Tensor) -> Tensor:
        return y * by[i, 0] + by[i, 1] * (_exchanged(y) - y)

    with torch.enable_grad(), edit_outputs([*named.values()], edit):
        logprobs = _logprobs(case) / torch.as_tensor(case.scale)
    apart, draws = torch.as_tensor(case.apart), torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (SIGNS, len(apart)), generator=draws).double() * 2 - 1
    size = torch.stack([slope(s) ** 2 for s in signs]).mean(0)
    step = slope(apart) / size.clamp(min=1e-30)
    share = step**2 * size / (apart**2).sum().clamp(min=1e-30)
    found = {
        (m, e): Gain(float(share[i, j]), float(step[i, j]))
        for i, m in enumerate(named)
        for j, e in enumerate(KINDS)
    }
    return {k: v for k, v in found.items() if k[1] != "scale" or not k[0].endswith(AGAIN)}


def _logprobs(case: Case) -> Tensor:
    """Of the tokens [N], with a gradient."""
    some = case.responses.each
    found = logits(case.network, lines(some))
    return torch.cat([logprobs(z, r) for z, r in zip(found, some, strict=True)]).double()


def bad_layer(case: Case, attempt: Attempt) -> None:
    """A module's outputs are scaled, exchanged by halves, or lost."""
    found = gains(case) if _projections(case.network) else {}
    likely = sorted(found, key=lambda key: -found[key].share)[:TRIED]
    lost = [(name, "lost") for name, _ in found if name.endswith(ENDS)]  # no gradient sees so far
    levels = _first_found([*likely, *dict.fromkeys(lost)], found, attempt)
    least = min(lost, key=lambda key: levels.get(key, HELPS), default=("", ""))
    if FOUND < levels.get(least, HELPS) < HELPS:  # the block is damaged in another way
        block = least[0].rpartition(".")[0]
        others = [k for k in found if k[0].startswith(block) and k not in likely]
        _first_found(others, found, attempt)


def _first_found(
    keys: Sequence[Edit], found: dict[Edit, Gain], attempt: Attempt
) -> dict[Edit, float]:
    """The levels that these modules' damages leave, up to the first that is it."""
    levels = dict[Edit, float]()
    for key in keys:
        levels[key] = _tried(*key, found.get(key), attempt)
        if levels[key] < FOUND:
            break
    return levels


def _tried(name: str, kind: str, gain: Gain | None, attempt: Attempt) -> float:
    """The least level that this module's damage leaves."""
    noted = lambda more, change: attempt(_about(name, more), change)  # noqa: E731
    if gain and kind == "scale":
        scales = (*SCALES, 1 + gain.step)
        return search_grid(noted, "scale", scales, lambda by: of_outputs(lambda y: y * by, name))
    if kind == "halves":
        return noted({"halves": "exchanged"}, of_outputs(_exchanged, name))
    return noted({"scale": 0.0}, of_outputs(torch.zeros_like, name))


def _about(name: str, more: dict[str, Any]) -> dict[str, Any]:
    found: Any = PROJECTION.search(name)
    module = found[2].rpartition(".")[2]
    alike = ALIKE.get(module, module) if "scale" in more else module
    return {"layer": int(found[1]), "module": alike, **more}


HYPOTHESES = [Hypothesis("bad_layer", bad_layer, far=True)]

"""Which experts compute a token: replayed routes of a mixture of experts that lie elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nemo_algos.engines.mismatch.responses import Response
from nemo_algos.lab.mismatch.hypotheses.forward import Attempt, Case, named
from nemo_algos.lab.mismatch.network import Change, Lines, Network, edit_outputs, hidden_states


def routers(network: Network) -> list[nn.Module]:
    """Those that give logits, weights and experts of each token."""
    return [m for m in network.model.modules() if type(m).__name__.endswith("TopKRouter")]


def routes(case: Case, attempt: Attempt) -> None:
    """Each token is computed by the experts of the token, or of the layer, beside it."""
    for offset in (1, -1) if routers(case.network) else ():
        attempt({"offset": offset, "of": "tokens"}, _replayed(offset, 0))
        attempt({"offset": offset, "of": "layers"}, _replayed(0, offset))


def _replayed(tokens: int, layers: int) -> Change:
    """The first token keeps its own; the first layer takes the last one's, as index -1 does."""

    @contextmanager
    def change(network: Network, shown: Lines, some: Sequence[Response]) -> Iterator[Lines]:
        of, kept = routers(network), dict[int, Any]()
        with edit_outputs(of, lambda i, out: kept.setdefault(i, out)):
            hidden_states(network, shown)
        place = (torch.arange(shown.ids.shape[1]) - tokens).clamp(0, shown.ids.shape[1] - 1)

        def edit(i: int, out: Any) -> Any:
            picked = kept[(i - layers) % len(of)][2].unflatten(0, shown.ids.shape)
            picked = picked[:, place].flatten(0, 1)
            return out[0], _weights(out, picked), picked

        with edit_outputs(of, edit):
            yield shown

    return change


def _weights(out: Any, picked: Tensor) -> Tensor:
    """Of other experts, normalized where the router's own are."""
    logits, own, _ = out
    taken = logits.float().softmax(-1).gather(-1, picked)
    normalized = bool(torch.allclose(own.float().sum(-1), torch.ones(()), atol=0.02))
    return (taken / taken.sum(-1, keepdim=True) if normalized else taken).to(own.dtype)


HYPOTHESES = named(routes)
